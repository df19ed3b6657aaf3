"""Homes that are hard to archive."""

import os
import socket
from pathlib import Path

NOT_UTF8 = os.fsdecode(b"caf\xe9 \xff\xfe.txt")
A_DAY_NS = 86_400_000_000_000


def make_nasty(home: Path) -> Path:
    """One of each kind of entry that has broken backups. Times are set last, from the leaves up."""
    home.mkdir(parents=True, exist_ok=True)
    files = {
        "plain": b"hello\n",
        "empty": b"",
        "with space ": b"x",
        "-rf": b"looks like an option",
        "new\nline": b"x",
        "tab\tand\\backslash": b"x",
        "ünïcödé 🐻 \u0301": b"x",
        NOT_UTF8: b"x",
        "exactly_512": b"b" * 512,
        "exactly_513": b"b" * 513,
        "percent%3D=equals": b"x",
    }
    for name, content in files.items():
        (home / name).write_bytes(content)
    (home / "big").write_bytes(os.urandom(3_000_001))
    with (home / "sparse").open("wb") as sparse:
        sparse.truncate(5_000_000)
        sparse.seek(3_333_333)
        sparse.write(b"island")

    (home / "empty dir").mkdir()
    deep = home
    for level in range(12):
        deep = deep / f"{level:02}{'d' * 40}"
    deep.mkdir(parents=True)
    (deep / ("n" * 255)).write_bytes(b"a long way down")
    (deep / ("é" * 127)).write_bytes(b"longer in bytes than in letters")
    (home / "order").mkdir()
    # "a-b" sorts before "a/b" as text and after it as a path: both orders are needed.
    (home / "order" / "a").mkdir()
    for name in ("a/b", "a-b", "a.b", "a0"):
        (home / "order" / name).write_bytes(name.encode())

    links = {
        "dangling": "nowhere at all",
        "absolute": "/etc/passwd",
        "loop": "loop",
        "upwards": "../../../../etc",
        "long": "t" * 300,
        "strange": os.fsdecode(b"\xff/\xfe"),
        "to dir": "empty dir",
    }
    (home / "links").mkdir()
    for name, target in links.items():
        (home / "links" / name).symlink_to(target)
    (home / "links" / "hard").hardlink_to(home / "plain")
    (home / "zz hard").hardlink_to(home / "plain")
    os.link(home / "links" / "dangling", home / "links" / "hard to a symlink", follow_symlinks=False)
    os.mkfifo(home / "pipe")

    os.setxattr(home / "plain", "user.comment", b"binary \x00\xff value")
    os.setxattr(home / "plain", "user.a=b%c", b"")
    os.setxattr(home / "empty dir", "user.on.a.dir", b"1")
    os.setxattr(home, "user.on.the.home", b"2")
    if os.geteuid() == 0:
        os.setxattr(home / "links" / "dangling", "trusted.on.a.link", b"3", follow_symlinks=False)
        os.chown(home / "big", 12345, 3_000_000)
        os.chown(home / "links" / "loop", 54321, 0, follow_symlinks=False)

    with socket.socket(socket.AF_UNIX) as left_behind:
        here = os.open(home, os.O_RDONLY)
        try:
            left_behind.bind(f"/proc/self/fd/{here}/socket")
        finally:
            os.close(here)

    (home / "setuid").write_bytes(b"x")
    (home / "setuid").chmod(0o6755)
    (home / "secret").write_bytes(b"nobody may read this")
    os.setxattr(home / "secret", "user.hidden", b"nor this")
    (home / "secret").chmod(0)
    (home / "sticky").mkdir(mode=0o777)
    (home / "sticky").chmod(0o3777)
    for name in ("read-only", "closed"):
        (home / name).mkdir()
        (home / name / "inside").write_bytes(b"x")

    times = {
        "plain": 1_700_000_000_123_456_789,
        "empty": -A_DAY_NS + 1,
        "exactly_512": -1,
        "exactly_513": 7_000_000_000_000_000_001,
        "pipe": 1,
        "setuid": 999_999_999,
        "links/dangling": 1_600_000_000_000_000_007,
        "empty dir": 1_500_000_000_000_000_003,
    }
    for name, time_ns in times.items():
        os.utime(home / name, ns=(time_ns, time_ns), follow_symlinks=False)
    for name, mode in (("read-only", 0o555), ("closed", 0)):
        os.utime(home / name, ns=(4_000_000_000_000_000_009, 4_000_000_000_000_000_009))
        (home / name).chmod(mode)
    home.chmod(0o750)
    return home
