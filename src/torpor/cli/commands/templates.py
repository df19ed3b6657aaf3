"""templates: list and show the templates of the server, and check files before it uses them."""

from pathlib import Path
from typing import Annotated

import typer

from torpor.cli.command_group import group
from torpor.cli.completer import template_names
from torpor.cli.exit_codes import CommandError, ExitCode, usage
from torpor.cli.options import Json
from torpor.cli.output.console import show as show_text
from torpor.cli.output.console import show_json
from torpor.cli.target import api_here, settings_here


def list_(as_json: Json = False) -> None:
    """List the templates of workspaces."""
    with api_here() as api:
        told = api.templates()
    if as_json:
        show_json(told)
        return
    from torpor.cli.output import render_templates

    show_text(render_templates.templates(told))


def show(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The template.", show_default=False, autocompletion=template_names)
    ],
    as_json: Json = False,
) -> None:
    """Show everything about one template."""
    with api_here() as api:
        told = api.templates()
    found = next((one for one in (*told["items"], *told.get("broken", ())) if one["name"] == name), None)
    if found is None:
        names = ", ".join(one["name"] for one in told["items"])
        raise CommandError(
            ExitCode.REFUSED, f"there is no template {name!r}", code="unknown_template", advice=f"choose one of {names}"
        )
    if as_json:
        show_json(found)
        return
    from torpor.cli.output import render_templates

    show_text(render_templates.template(found))


def check(
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[FILE...]", help="The files (default: all of templates_dir).", show_default=False),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check files of templates, without a server."""
    from torpor.templates.catalogue import read_file
    from torpor.templates.template_file import TemplateBroken

    items = []
    for path in files or _files_of_templates_dir():
        try:
            read_file(path)
            items.append({"file": str(path), "ok": True, "faults": []})
        except TemplateBroken as error:
            items.append({"file": str(path), "ok": False, "faults": list(error.faults)})
    if as_json:
        show_json({"items": items})
    else:
        from torpor.cli.output import render_templates

        show_text(render_templates.checked(items))
    raise typer.Exit(ExitCode.OK if all(item["ok"] for item in items) else ExitCode.REFUSED)


def _files_of_templates_dir() -> list[Path]:
    from torpor.templates.catalogue import template_files

    folder = settings_here().templates_dir
    if folder is None:
        raise usage("there is nothing to check: templates_dir is not set", "name the files, or set TORPOR_TEMPLATES_DIR")
    try:
        return template_files(folder)
    except OSError as error:
        raise usage(f"templates_dir {folder} cannot be read: {error.strerror}", "create it, or correct the setting") from None


app = group("templates", "The templates of workspaces.", list_, {"list": list_, "show": show, "check": check})
