"""archives, restore, fork: look at archives, go back to an older one, or create a workspace from one."""

import json
import os
import stat
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torpor.cli.commands.workspaces import conclude
from torpor.cli.exit_codes import usage
from torpor.cli.options import Json, Name, Timeout, Wait
from torpor.cli.output.console import say, show_bytes, show_json
from torpor.cli.output.console import show as show_text
from torpor.cli.output.wording import escaped_line
from torpor.cli.target import api_here

if TYPE_CHECKING:
    from torpor.cli.client import ApiClient, Record

HOME = "."
KIND_BITS = {"dir": stat.S_IFDIR, "symlink": stat.S_IFLNK, "fifo": stat.S_IFIFO, "file": stat.S_IFREG, "hardlink": stat.S_IFREG}


def restore(
    name: Name,
    archive_key: Annotated[
        str | None,
        typer.Option(
            "--archive",
            metavar="KEY",
            help="The archive, or the beginning of its key; `torpor archives NAME` lists them.",
            show_default=False,
        ),
    ] = None,
    cancel: Annotated[bool, typer.Option("--cancel", help="Keep the present home, if it is not replaced yet.")] = False,
    wait: Wait = False,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Replace the home by an older archive; the present home is archived first."""
    if (archive_key is None) != cancel:
        raise usage("choose one of --archive KEY and --cancel", "`torpor archives NAME` lists the archives")
    with api_here() as api:
        workspace = api.cancel_restore(name) if archive_key is None else api.restore(name, _full_key(api, name, archive_key))
        conclude(api, workspace, wait=wait, timeout_s=timeout, as_json=as_json)


def fork(
    name: Name,
    new: Annotated[str, typer.Argument(metavar="NEW", help="The name of the new workspace.", show_default=False)],
    archive_key: Annotated[
        str | None,
        typer.Option("--archive", metavar="KEY", help="The archive to copy (default: the current one).", show_default=False),
    ] = None,
    wait: Wait = False,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Create a workspace of your own, with a copy of an archived home."""
    with api_here() as api:
        chosen = {} if archive_key is None else {"archive_key": _full_key(api, name, archive_key)}
        made = api.fork(name, {"name": new, **chosen})
        for warning in made.get("warnings", ()):
            say(f"torpor: warning: {warning}")
        conclude(api, made, wait=wait, timeout_s=timeout, as_json=as_json)


def archives(
    name: Name,
    path: Annotated[
        str, typer.Argument(metavar="[PATH]", help="With --list: the folder, by default the home.", show_default=False)
    ] = HOME,
    lists: Annotated[bool, typer.Option("--list", help="List a folder of an archive.")] = False,
    get: Annotated[
        str | None, typer.Option("--get", metavar="PATH", help="Print a file of an archive.", show_default=False)
    ] = None,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="FILE", help="With --get: write to this new file.", show_default=False),
    ] = None,
    diff: Annotated[
        tuple[str, str] | None,
        typer.Option("--diff", metavar="KEY1 KEY2", help="List the paths that differ.", show_default=False),
    ] = None,
    export: Annotated[
        str | None,
        typer.Option(
            "--export", metavar="FILE", help="Write the home of an archive to this new file, as .tar.zst.", show_default=False
        ),
    ] = None,
    archive_key: Annotated[
        str | None,
        typer.Option("--archive", metavar="KEY", help="The archive to read (default: the current one).", show_default=False),
    ] = None,
    as_json: Json = False,
) -> None:
    """List its archives, or read them without a start."""
    if lists + sum(one is not None for one in (get, diff, export)) > 1:
        raise usage("--list, --get, --diff and --export cannot be used together", "choose one of them")
    for is_given, option, is_used, with_which in (
        (path != HOME, "PATH", lists, "--list"),
        (output is not None, "--output", get is not None, "--get"),
        (archive_key is not None, "--archive", lists or get is not None or export is not None, "--list, --get and --export"),
        (as_json, "--json", get is None and export is None, "the list of archives, --list and --diff"),
    ):
        if is_given and not is_used:
            raise usage(f"{option} is only for {with_which}", "see `torpor archives --help`")
    with api_here() as api:
        key = None if archive_key is None else _full_key(api, name, archive_key)
        if get is not None:
            _save(lambda: api.archived_content(name, key, get), output)
        elif export is not None:
            _save(lambda: api.archive_export(name, key), export)
        elif lists:
            _show_lines(api.archived_files(name, key, path), as_json=as_json, words=_file_words)
        elif diff is not None:
            before, after = (_full_key(api, name, one) for one in diff)
            _show_lines(api.archive_differences(name, before, after), as_json=as_json, words=_difference_words)
        else:
            _show_archives(api.archives(name), as_json=as_json)


def _full_key(api: "ApiClient", name: str, given: str) -> str:
    """The whole key of the archive whose key begins so. Without such an archive, the server refuses what was given."""
    if "/" in given:
        return given
    found = [one["key"] for one in api.archives(name) if one["key"].rpartition("/")[2].startswith(given)]
    if len(found) > 1:
        raise usage(f"{given!r} is the beginning of {len(found)} keys", "give more of the key")
    return found[0] if found else given


def _show_archives(items: "list[Record]", *, as_json: bool) -> None:
    if as_json:
        show_json({"items": items})
        return
    from torpor.cli.output import render

    show_text(render.archives(items, datetime.now(UTC)))


def _save(read: Callable[[], Iterator[bytes]], file: str | None) -> None:
    """A file is complete or absent: the answer may end in the middle. An existing file is never replaced."""
    if file is None or file == "-":
        for piece in read():
            show_bytes(piece)
        return
    target = Path(file)
    if os.path.lexists(target):
        raise usage(f"{file!r} exists", "choose another file, or remove it first")
    partial = target.with_name(f"{target.name}.part")
    try:
        with partial.open("wb") as writing:
            for piece in read():
                writing.write(piece)
        partial.replace(target)
    except OSError as error:
        raise usage(f"{file!r} cannot be written: {error.strerror}", "choose another file") from error
    finally:
        partial.unlink(missing_ok=True)


def _show_lines(pieces: Iterator[bytes], *, as_json: bool, words: "Callable[[Record], str]") -> None:
    rest = b""
    for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            show_bytes(line + b"\n" if as_json else escaped_line(words(json.loads(line))).encode() + b"\n")


def _file_words(item: "Record") -> str:
    if not item.get("is_archived", True):
        return f"{'not archived':>23} {item['path']} ({item['kind']})"
    end = "/" if item["kind"] == "dir" else f" -> {item['target']}" if item["target"] else ""
    return f"{stat.filemode(item['mode'] | KIND_BITS.get(item['kind'], 0))} {item['size']:>12} {item['path']}{end}"


def _difference_words(item: "Record") -> str:
    return f"{item['change']:<8} {item['path']}"
