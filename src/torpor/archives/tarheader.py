"""Compute the PAX tar header of an entry.

It is a pure function of the entry, so the reader needs no tar parser: it computes the expected bytes and compares. Every `tar`
can read the result. PAX records hold nanosecond times, long or unusual names and extended attributes, as GNU tar writes them.
"""

from torpor.archives.entries import HOME, Entry, EntryKind, HomeFacts

BLOCK = 512
END = bytes(2 * BLOCK)
NANOSECONDS = 1_000_000_000
MOST_OCTAL_7 = 0o7777777
MOST_OCTAL_11 = 0o77777777777

TYPE_FLAG = {
    EntryKind.FILE: b"0",
    EntryKind.HARDLINK: b"1",
    EntryKind.SYMLINK: b"2",
    EntryKind.DIRECTORY: b"5",
    EntryKind.FIFO: b"6",
}


def header(entry: Entry, home: HomeFacts) -> bytes:
    path = _path(entry)
    target = _bytes(entry.target)
    uid = home.uid if entry.uid == "home" else entry.uid
    gid = home.gid if entry.gid == "home" else entry.gid
    mtime_ns = home.mtime_ns if entry.mtime_ns is None else entry.mtime_ns

    records: list[bytes] = []
    if not (_is_utf8(path) and _is_utf8(target)):
        records.append(_record(b"hdrcharset", b"BINARY"))
    records.append(_record(b"mtime", _seconds(mtime_ns)))
    if len(path) > 100 or not path.isascii():
        records.append(_record(b"path", path))
    if len(target) > 100 or not target.isascii():
        records.append(_record(b"linkpath", target))
    if entry.size > MOST_OCTAL_11:
        records.append(_record(b"size", b"%d" % entry.size))
    if uid > MOST_OCTAL_7:
        records.append(_record(b"uid", b"%d" % uid))
    if gid > MOST_OCTAL_7:
        records.append(_record(b"gid", b"%d" % gid))
    for name in sorted(entry.xattrs):
        # "=" ends a keyword, so GNU tar writes it as %3D, and "%" as %25.
        keyword = b"SCHILY.xattr." + _bytes(name).replace(b"%", b"%25").replace(b"=", b"%3D")
        records.append(_record(keyword, entry.xattrs[name]))

    extended = b"".join(records)
    return b"".join(
        (
            _block(b"././@PaxHeader", mode=0o644, uid=0, gid=0, size=len(extended), mtime=0, flag=b"x", target=b""),
            extended,
            padding(len(extended)),
            _block(
                path[:100],
                mode=entry.mode,
                uid=uid if uid <= MOST_OCTAL_7 else 0,
                gid=gid if gid <= MOST_OCTAL_7 else 0,
                size=entry.size if entry.size <= MOST_OCTAL_11 else 0,
                mtime=min(max(mtime_ns // NANOSECONDS, 0), MOST_OCTAL_11),
                flag=TYPE_FLAG[entry.kind],
                target=target[:100],
            ),
        )
    )


def padding(size: int) -> bytes:
    return bytes(-size % BLOCK)


def _path(entry: Entry) -> bytes:
    if entry.path == HOME:
        return b"./"
    return _bytes(entry.path) + (b"/" if entry.kind is EntryKind.DIRECTORY else b"")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _is_utf8(text: bytes) -> bool:
    if text.isascii():
        return True
    try:
        text.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _seconds(time_ns: int) -> bytes:
    """Exactly, in decimal: a float would lose the nanoseconds."""
    whole, fraction = divmod(abs(time_ns), NANOSECONDS)
    return b"%s%d.%09d" % (b"-" if time_ns < 0 else b"", whole, fraction)


def _record(keyword: bytes, value: bytes) -> bytes:
    """`LENGTH KEYWORD=VALUE\\n`, where LENGTH counts its own digits too."""
    bare = len(keyword) + len(value) + 3
    length = bare + len(str(bare))
    if len(str(length)) > len(str(bare)):
        length += 1
    return b"%d %s=%s\n" % (length, keyword, value)


def _block(name: bytes, *, mode: int, uid: int, gid: int, size: int, mtime: int, flag: bytes, target: bytes) -> bytes:
    front = b"%s%07o\0%07o\0%07o\0%011o\0%011o\0" % (name.ljust(100, b"\0"), mode, uid, gid, size, mtime)
    back = b"%s%sustar\x0000" % (flag, target.ljust(100, b"\0"))
    # The checksum is computed with spaces in its own eight bytes.
    checksum = sum(front) + sum(back) + 8 * 0x20
    return b"%s%06o\0 %s" % (front, checksum, back.ljust(BLOCK - len(front) - 8, b"\0"))
