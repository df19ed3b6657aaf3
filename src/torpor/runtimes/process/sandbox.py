"""Define the bubblewrap sandbox: the files that a program can see.

Read-only: the system (`/usr` and its aliases), a part of `/etc`, the interpreter, and Torpor's files in /opt/torpor. Private:
/home/workspace, an empty /tmp, /run/program for the socket of its program, a minimal /dev, and /proc with its own processes.
Other homes, Torpor's data and the users of the machine do not exist in the sandbox.
"""

import contextlib
import os
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torpor.inside
from torpor.runtimes.process.processes import MARK

HOME = "/home/workspace"
USER = "workspace"
INSIDE = "/opt/torpor/inside"
SITE = "/opt/torpor/site"
PROGRAMS = "/opt/torpor/programs"
PROGRAM = "/run/program"
"""The directory of the socket that the program listens on: a small tmpfs in the sandbox, not a directory of this machine."""
PROGRAM_BYTES = 65536

SYSTEM = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")

# None of these contains users, secrets or other hosts.
ETC = (
    "alternatives", "bash.bashrc", "bash_completion.d", "bindresvport.blacklist", "ca-certificates", "ca-certificates.conf",
    "crypto-policies", "debian_version", "default/locale", "fonts", "gai.conf", "host.conf",
    "inputrc", "java-11-openjdk", "java-17-openjdk", "java-21-openjdk", "ld.so.cache", "ld.so.conf", "ld.so.conf.d",
    "locale.alias", "locale.conf", "localtime", "lsb-release", "magic", "magic.mime", "mailcap", "mime.types", "nanorc",
    "os-release", "perl", "pki/ca-trust", "pki/tls/certs", "profile", "profile.d", "protocols", "python3", "python3.11",
    "python3.12", "python3.13", "redhat-release", "rpc", "services", "shells", "skel", "ssl/certs", "ssl/openssl.cnf",
    "terminfo", "timezone", "vim", "xattr.conf", "xdg", "xml", "zsh",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """The parts of one container's sandbox."""

    home: Path
    etc: Path
    """Files for this container's /etc."""
    programs: Path | None
    user: int
    own_user_namespace: bool
    own_network: bool
    tmp_bytes: int
    """0 if this bubblewrap cannot limit it."""


def inside_folder() -> Path:
    return Path(torpor.inside.__file__).resolve().parent


def site_folder() -> Path:
    return Path(sysconfig.get_path("purelib")).resolve()


def interpreter() -> Path:
    """The interpreter of the base installation: that of a virtual environment is only a link to it."""
    base: str = getattr(sys, "_base_executable", None) or sys.executable
    return Path(base).resolve()


def python_argv() -> list[str]:
    """Without the user's settings and packages; text is UTF-8 in any locale."""
    return [str(interpreter()), "-I", "-S", "-X", "utf8"]


def interpreter_home() -> Path | None:
    """The directory that the interpreter needs besides /usr, if any."""
    prefix = Path(sys.base_prefix).resolve()
    return None if prefix.is_relative_to("/usr") else prefix


def etc_files(user: int, nameservers: Iterable[str]) -> dict[str, str]:
    shell = login_shell()
    return {
        "passwd": f"root:x:0:0:root:/root:/usr/sbin/nologin\n{USER}:x:{user}:{user}::{HOME}:{shell}\n"
        "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
        "group": f"root:x:0:\ntty:x:5:\n{USER}:x:{user}:\nnogroup:x:65534:\n",
        "hosts": "127.0.0.1 localhost workspace\n::1 localhost ip6-localhost ip6-loopback\n",
        "hostname": "workspace\n",
        "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\nservices: files\nprotocols: files\n",
        "resolv.conf": "".join(f"nameserver {server}\n" for server in nameservers),
    }


def own_resolvers() -> str:
    """This machine's resolv.conf, for workspaces that share its network and can reach its loopback."""
    with contextlib.suppress(OSError):
        return Path("/etc/resolv.conf").read_text()
    return ""


def login_shell() -> str:
    return "/bin/bash" if Path("/bin/bash").exists() else "/bin/sh"


def environment(given: Mapping[str, str], *, home: str, port: int, last_in_path: Iterable[str]) -> dict[str, str]:
    """A new environment without Torpor's variables, which contain secrets."""
    system = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
    return {
        "PATH": ":".join((f"{home}/.local/bin", *system, *last_in_path)),
        "HOME": home,
        "USER": USER,
        "LOGNAME": USER,
        "SHELL": login_shell(),
        "LANG": "C.UTF-8",
        "TERM": "xterm-256color",
        **given,
        "PORT": str(port),
    }


def argv(bubblewrap: str, spec: SandboxSpec, command: Iterable[str], *, mark: str, info_fd: int) -> list[str]:
    """The whole command. The order matters: later mounts cover earlier ones."""
    words = [bubblewrap, "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--hostname", "workspace"]
    words += ["--die-with-parent", "--as-pid-1", "--clearenv", "--setenv", MARK, mark]
    if spec.own_user_namespace:
        words += ["--unshare-user", "--uid", str(spec.user), "--gid", str(spec.user)]
    if spec.own_network:
        words += ["--unshare-net"]
    words += ["--info-fd", str(info_fd)]
    shown = [(str(path), str(path)) for path in (Path("/usr"), interpreter_home()) if path is not None]
    shown += [(f"/etc/{name}", f"/etc/{name}") for name in ETC if Path("/etc", name).exists()]
    shown += [(str(path), f"/etc/{path.name}") for path in sorted(spec.etc.iterdir())]
    shown += [(str(inside_folder()), INSIDE), (str(site_folder()), SITE)]
    shown += [(str(spec.programs), PROGRAMS)] if spec.programs is not None else []
    for directory in parents([*(target for _, target in shown), HOME, PROGRAM, "/var/_"]):
        # By default bubblewrap creates them for its own user only.
        words += ["--perms", "0755", "--dir", directory]
    for source, target in shown:
        words += ["--ro-bind", source, target]
    for path in SYSTEM:
        words += _system(path)
    words += ["--proc", "/proc", "--dev", "/dev"]
    for path, size in (("/dev/shm", spec.tmp_bytes), ("/tmp", spec.tmp_bytes), (PROGRAM, PROGRAM_BYTES)):  # noqa: S108
        words += ["--perms", "1777", *(["--size", str(size)] if spec.tmp_bytes > 0 else []), "--tmpfs", path]
    words += ["--symlink", "/tmp", "/var/tmp"]  # noqa: S108
    words += ["--bind", str(spec.home), HOME, "--chdir", HOME, "--remount-ro", "/"]
    return [*words, "--", *command]


def parents(paths: Iterable[str]) -> list[str]:
    """Each parent directory of these paths once, from the top down."""
    found = {str(parent) for path in paths for parent in Path(path).parents}
    return sorted(found - {"/"})


def _system(path: str) -> list[str]:
    """On merged systems these are links into /usr, elsewhere directories."""
    if os.path.islink(path):  # noqa: PTH114
        return ["--symlink", os.readlink(path), path]  # noqa: PTH115
    return ["--ro-bind", path, path] if Path(path).is_dir() else []
