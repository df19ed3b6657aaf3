"""up, serve, down, doctor, release, migrate: run and maintain the server."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torpor.cli.exit_codes import CommandError, ExitCode, usage
from torpor.cli.options import Data, Json
from torpor.cli.output.console import show as show_text
from torpor.cli.output.console import show_bytes, show_json, show_line
from torpor.cli.pid_file import already_running, argv_of, is_torpor, running_pid
from torpor.cli.target import api_here, settings_here

if TYPE_CHECKING:
    from torpor.settings import Settings

LOG_FILE = "torpor.log"
READY = "torpor is ready at "
LAST_LINES = 20
POLL_S = 0.1
# The first start creates a database, which takes long on a small machine.
READY_TIMEOUT_S = 180.0
# Each workspace may use its whole grace period to stop.
DOWN_TIMEOUT_S = 120.0

Port = Annotated[int | None, typer.Option("--port", help="The port to listen on (default: 8080).", show_default=False)]
RuntimeName = Annotated[
    str | None, typer.Option("--runtime", help="The runtime that runs workspaces (default: auto).", show_default=False)
]
Unconfined = Annotated[
    bool, typer.Option("--unconfined", help="Allow several users although workspaces are not isolated from each other.")
]


def up(
    data: Data = None,
    port: Port = None,
    runtime: RuntimeName = None,
    unconfined: Unconfined = False,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Run in the background; `torpor down` stops it.")] = False,
    as_json: Json = False,
) -> None:
    """Run everything on this machine; Ctrl-C stops it."""
    if as_json and not detach:
        raise usage("--json needs --detach", "without --detach, the output is the log")
    given = {"data": data, "port": port, "runtime": runtime}
    settings = settings_here(**given, unconfined=unconfined or None)
    if detach:
        options = [f"--{name}={value}" for name, value in given.items() if value is not None]
        _detach(settings.data, [*options, *(["--unconfined"] if unconfined else [])], as_json=as_json)
        return
    from torpor.assemble import run_up

    raise typer.Exit(run_up(settings))


def serve(
    role: Annotated[str, typer.Option("--role", metavar="PARTS", help="The parts to run: api,proxy,controller.")],
    data: Data = None,
    port: Port = None,
    runtime: RuntimeName = None,
    unconfined: Unconfined = False,
) -> None:
    """Run parts of the server on your own PostgreSQL, Redis and storage."""
    settings = settings_here(data=data, port=port, runtime=runtime, unconfined=unconfined or None)
    from torpor.assemble import run_serve
    from torpor.assemble.roles import parts_of

    raise typer.Exit(run_serve(settings, parts_of(role)))


def down(
    data: Data = None,
    timeout: Annotated[float, typer.Option("--timeout", metavar="SECONDS", min=0, help="How long to wait.")] = DOWN_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Stop a `torpor up`, and wait until it has stopped."""
    place = settings_here(data=data).data
    pid = running_pid(place)
    if pid is None:
        raise CommandError(ExitCode.REFUSED, f"torpor is not running in {place}", code="not_up", advice="`torpor up` starts it")
    if not is_torpor(argv_of(pid)):
        raise CommandError(
            ExitCode.REFUSED,
            f"process {pid}, which uses {place}, is not a `torpor up` and was not stopped",
            code="not_torpor",
            advice=f"`ps -fp {pid}` shows it",
        )
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + timeout
    while running_pid(place) is not None:
        if time.monotonic() >= deadline:
            raise CommandError(
                ExitCode.TIMED_OUT,
                f"torpor (process {pid}) did not stop within {timeout:g} s",
                code="wait_timed_out",
                advice=f"it may still stop; if it was started with --detach, see {place / LOG_FILE}",
            )
        time.sleep(POLL_S)
    show_json({"pid": pid}) if as_json else show_line(f"torpor has stopped (process {pid})")


def doctor(data: Data = None, as_json: Json = False) -> None:
    """Check this machine, and show what to do."""
    settings = settings_here(data=data)
    import asyncio

    from torpor.assemble.doctor import examine

    found = asyncio.run(examine(settings))
    fields = ("what", "ok", "detail", "advice", "blocks")
    items = [{field: getattr(finding, field) for field in fields} for finding in found]
    if as_json:
        show_json({"items": items})
    else:
        from torpor.cli.output import render

        show_text(render.findings(items))
    raise typer.Exit(ExitCode.REFUSED if any(item["blocks"] and not item["ok"] for item in items) else ExitCode.OK)


def release(
    provider: Annotated[
        str, typer.Argument(help="The storage that is locked because many homes are missing; see `torpor doctor`.")
    ],
    as_json: Json = False,
) -> None:
    """Confirm that many missing homes are lost."""
    with api_here() as api:
        api.release(provider)
    show_json({"released": provider}) if as_json else show_line(f"{provider} is no longer locked")


def migrate(
    admin: Annotated[
        str | None,
        typer.Option("--admin", metavar="NAME", help="Also create the first administrator.", show_default=False),
    ] = None,
    if_none: Annotated[bool, typer.Option("--if-none", help="With --admin: if there is an administrator, do nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Update the schema of an external database."""
    settings = settings_here()
    url = _database_url(settings)
    import asyncio

    from torpor.store.migrate import migrate as bring_up_to_date

    applied = list(asyncio.run(bring_up_to_date(url)))
    if not as_json:
        for line in [f"applied {name}" for name in applied] or ["the schema is up to date"]:
            show_line(line)
    result: dict[str, object] = {"items": applied}
    if admin is not None:
        from torpor.assemble.first_admin import create_first_admin

        password = asyncio.run(create_first_admin(url, admin, if_none=if_none))
        result["admin"] = {"username": admin, "password": password} if password is not None else None
        if password is None and not as_json:
            show_line("there is already an administrator")
        elif not as_json:
            show_line(f"created administrator {admin} with the one-time password {password}")
            show_line(f"sign in at {settings.base_url}, then set your own password on the page Account")
    if as_json:
        show_json(result)


def _database_url(settings: "Settings") -> str:
    if settings.database_url is None:
        raise usage(
            "no database is configured",
            "set TORPOR_DATABASE_URL or database_url in torpor.toml; `torpor up` migrates its own database",
            code="bad_setting",
        )
    return settings.database_url.get_secret_value()


# ── in the background ─────────────────────────────────────────────────────────────────────────────────────────────────


def _detach(data: Path, options: list[str], *, as_json: bool) -> None:
    pid = running_pid(data)
    if pid is not None:
        raise already_running(data, pid)
    log = data / LOG_FILE
    try:
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
        # The log contains the sign-in link.
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError as error:
        what = f"the data directory {data} cannot be used: {error.strerror}"
        raise CommandError(
            ExitCode.REFUSED, what, code="bad_data", advice="choose another with --data or TORPOR_DATA"
        ) from None
    began_at = os.fstat(descriptor).st_size
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "torpor", "up", *options],
        stdin=subprocess.DEVNULL,
        stdout=descriptor,
        stderr=descriptor,
        start_new_session=True,
    )
    os.close(descriptor)
    try:
        ready = _ready_line(process, log, began_at)
    except BaseException:
        # No output would name this process.
        process.terminate()
        raise
    # The server keeps running: without this, Popen would warn.
    process.returncode = 0
    show_json({"ready": ready, "pid": process.pid, "log": str(log)}) if as_json else show_bytes(f"{ready}\n".encode())


def _ready_line(process: "subprocess.Popen[bytes]", log: Path, began_at: int) -> str:
    deadline = time.monotonic() + READY_TIMEOUT_S
    while True:
        code = process.poll()
        lines = _lines_since(log, began_at)
        ready = next((line for line in lines if READY in line), None)
        if code is not None:
            what = f"torpor ended before it was ready (exit code {code}); its last lines:"
            raise CommandError(
                ExitCode(code) if code in list(ExitCode)[1:] else ExitCode.REFUSED,
                what,
                code="not_ready",
                more=lines[-LAST_LINES:],
            )
        if ready is not None:
            return ready
        if time.monotonic() >= deadline:
            what = f"torpor was not ready after {READY_TIMEOUT_S:g} s and was stopped; its last lines:"
            raise CommandError(
                ExitCode.TIMED_OUT, what, code="wait_timed_out", advice=f"the whole log is {log}", more=lines[-LAST_LINES:]
            )
        time.sleep(POLL_S)


def _lines_since(log: Path, began_at: int) -> list[str]:
    with log.open("rb") as file:
        file.seek(began_at)
        whole, _, _ = file.read().rpartition(b"\n")
    return whole.decode("utf-8", "replace").splitlines()
