"""Build a group of commands. Without a subcommand, the group lists its items, or else shows its help."""

from collections.abc import Callable, Mapping

import typer

from torpor.cli.options import Json


def group(
    name: str, means: str, listing: Callable[[bool], None] | None, commands: Mapping[str, Callable[..., None]]
) -> typer.Typer:
    app = typer.Typer(
        name=name,
        help=means,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        add_completion=False,
        no_args_is_help=listing is None,
    )
    for word, command in commands.items():
        app.command(word)(command)
    if listing is None:
        return app

    @app.callback(invoke_without_command=True)
    def _alone(context: typer.Context, as_json: Json = False) -> None:
        if context.invoked_subcommand is None:
            listing(as_json)

    return app
