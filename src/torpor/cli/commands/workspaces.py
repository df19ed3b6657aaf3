"""create, start, stop, archive, delete, undelete, recover: request a state, and wait for it with `--wait`."""

from typing import TYPE_CHECKING, Annotated

import typer

from torpor.cli.completer import template_names
from torpor.cli.exit_codes import CommandError, ExitCode, usage
from torpor.cli.options import Json, Name, Timeout, Wait
from torpor.cli.output.console import say, show_json, show_line
from torpor.cli.prompts import confirm
from torpor.cli.target import api_here

if TYPE_CHECKING:
    from torpor.cli.client import ApiClient, Record


def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A DNS label without `--`.", show_default=False)],
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- CMD...]", help="The program, for a template that takes one.", show_default=False),
    ] = None,
    template: Annotated[
        str | None,
        typer.Option(
            "--template", "-t", help="A template from `torpor templates`.", show_default=False, autocompletion=template_names
        ),
    ] = None,
    image: Annotated[
        str | None,
        typer.Option(
            "--image", metavar="REF", help="Run in this image, such as python:3.12 (needs an engine).", show_default=False
        ),
    ] = None,
    before_sleep: Annotated[
        str | None,
        typer.Option(
            "--before-sleep",
            metavar="CMD",
            help="Run this before an automatic stop, without a shell; '' runs nothing.",
            show_default=False,
        ),
    ] = None,
    variables: Annotated[
        list[str] | None,
        typer.Option("--env", "-e", metavar="K=V", help="A variable of the environment; can be repeated.", show_default=False),
    ] = None,
    cpu: Annotated[
        float | None, typer.Option("--cpu", metavar="N", help="Cores, such as 2 or 0.5.", show_default=False)
    ] = None,
    memory: Annotated[
        str | None, typer.Option("--memory", metavar="SIZE", help="Memory, such as 512M or 4G.", show_default=False)
    ] = None,
    disk: Annotated[
        str | None, typer.Option("--disk", metavar="SIZE", help="Disk space, such as 20G.", show_default=False)
    ] = None,
    wait: Wait = False,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Create a workspace, and start it."""
    wanted: Record = {"name": name}
    if template is not None:
        wanted["template"] = template
    if image is not None:
        wanted["image"] = image
    if command:
        wanted["command"] = command
    if before_sleep is not None:
        from torpor.cli.commands.before_sleep import words_of

        wanted["before_sleep"] = words_of(before_sleep)
    if variables:
        from torpor.cli.commands.env import pairs

        wanted["environment"] = pairs(variables)
    size = {"cpu": cpu, "memory_mb": _megabytes("--memory", memory), "disk_mb": _megabytes("--disk", disk)}
    if any(value is not None for value in size.values()):
        wanted["size"] = {name: value for name, value in size.items() if value is not None}
    with api_here() as api:
        made = api.create(wanted)
        for warning in made.get("warnings", ()):
            say(f"torpor: warning: {warning}")
        conclude(api, made, wait=wait, timeout_s=timeout, as_json=as_json)


def _megabytes(option: str, said: str | None) -> int | None:
    if said is None:
        return None
    from torpor.domain.sizes import megabytes

    amount = megabytes(said)
    if amount is None:
        raise usage(f"{option} {said!r} is not an amount with its unit", "for example 512M or 4G")
    return amount


def start(name: Name, wait: Wait = False, timeout: Timeout = None, as_json: Json = False) -> None:
    """Start a workspace."""
    _wish(name, "RUNNING", wait=wait, timeout_s=timeout, as_json=as_json)


def stop(name: Name, wait: Wait = False, timeout: Timeout = None, as_json: Json = False) -> None:
    """Stop a workspace; its home stays on disk."""
    _wish(name, "STANDBY", wait=wait, timeout_s=timeout, as_json=as_json)


def archive(name: Name, wait: Wait = False, timeout: Timeout = None, as_json: Json = False) -> None:
    """Stop a workspace and move its home to the archive."""
    _wish(name, "ARCHIVED", wait=wait, timeout_s=timeout, as_json=as_json)


def delete(
    name: Name,
    purge: Annotated[bool, typer.Option("--purge", help="Also remove all archives: `undelete` is not possible.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Purge without a question.")] = False,
    wait: Wait = False,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Delete a workspace; `undelete` restores it within seven days (default)."""
    if purge and not yes:
        confirm(f"Purge {name!r}? Its home and its archives are removed permanently.", "nothing was purged")
    with api_here() as api:
        conclude(api, api.delete(name, purge=purge), wait=wait, timeout_s=timeout, as_json=as_json)


def undelete(name: Name, wait: Wait = False, timeout: Timeout = None, as_json: Json = False) -> None:
    """Restore a deleted workspace, as archived."""
    with api_here() as api:
        conclude(api, api.undelete(name), wait=wait, timeout_s=timeout, as_json=as_json)


def recover(
    name: Name,
    archive_key: Annotated[
        str | None,
        typer.Option("--archive-key", metavar="KEY", help="If the home is lost: restore this archive.", show_default=False),
    ] = None,
    empty: Annotated[bool, typer.Option("--empty", help="If the home is lost: start with an empty one.")] = False,
    accept: Annotated[
        bool, typer.Option("--accept", help="If the home's marker cannot be read: use the home as it is.")
    ] = False,
    wait: Wait = False,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Retry after an error; if the home is lost or its marker unreadable, choose how."""
    if (archive_key is not None) + empty + accept > 1:
        raise usage("--archive-key, --empty and --accept cannot be used together", "choose one of them")
    way: Record = {}
    if archive_key is not None:
        way["archive_key"] = archive_key
    if empty:
        way["empty"] = True
    if accept:
        way["accept"] = True
    with api_here() as api:
        conclude(api, api.recover(name, way), wait=wait, timeout_s=timeout, as_json=as_json, is_recovery=True)


def _wish(name: str, desired_state: str, *, wait: bool, timeout_s: float | None, as_json: bool) -> None:
    with api_here() as api:
        conclude(api, api.wish(name, desired_state), wait=wait, timeout_s=timeout_s, as_json=as_json)


def conclude(
    api: "ApiClient", workspace: "Record", *, wait: bool, timeout_s: float | None, as_json: bool, is_recovery: bool = False
) -> None:
    """Print the status of an accepted request, with `--wait` after the state is reached."""
    from torpor.cli.output.wording import reached_line, wish_line

    if not wait:
        show_json(workspace) if as_json else show_line(wish_line(workspace))
        return
    from torpor.cli.output.progress import wait_progress
    from torpor.cli.wait import pending_wish, wait_for

    wish = pending_wish(workspace, is_recovery=is_recovery)
    try:
        with wait_progress() as show:
            reached = wait_for(api, workspace, wish, show=show, timeout_s=timeout_s)
    except KeyboardInterrupt:
        advice = f"the request stays active; `torpor show {wish.name}` shows the progress"
        raise CommandError(ExitCode.INTERRUPTED, "no longer waiting", code="interrupted", advice=advice) from None
    if as_json:
        # A workspace that no longer exists is printed as it was last, in its final phase.
        show_json(reached if reached is not None else {**workspace, "phase": "DELETED", "operation": "NONE"})
    else:
        show_line(reached_line(reached) if reached is not None else f"{wish.name} is deleted")
