"""up, serve, down, doctor, release, migrate: the product itself, for whoever runs it."""

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
# The first start makes a database; on a small machine that takes its time.
READY_TIMEOUT_S = 180.0
# Every workspace may take its grace period to end.
DOWN_TIMEOUT_S = 120.0

Unconfined = Annotated[
    bool, typer.Option("--unconfined", help="Accept several users though workspaces are not confined from each other.")
]


def up(
    data: Data = None,
    port: Annotated[int | None, typer.Option("--port", help="Where it answers (default: 8080).", show_default=False)] = None,
    runtime: Annotated[
        str | None, typer.Option("--runtime", help="What runs workspaces (default: auto).", show_default=False)
    ] = None,
    unconfined: Unconfined = False,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="In the background; `torpor down` stops it.")] = False,
    as_json: Json = False,
) -> None:
    """The whole product on this machine; Ctrl-C stops it."""
    if as_json and not detach:
        raise usage("--json needs --detach", "in the foreground the product's own log is the answer")
    said = {"data": data, "port": port, "runtime": runtime}
    settings = settings_here(**said, unconfined=unconfined or None)
    if detach:
        options = [f"--{name}={value}" for name, value in said.items() if value is not None]
        _detach(settings.data, [*options, *(["--unconfined"] if unconfined else [])], as_json=as_json)
        return
    from torpor.assemble import run_up

    raise typer.Exit(run_up(settings))


def serve(
    role: Annotated[str, typer.Option("--role", metavar="PARTS", help="What this process does: api,proxy,controller.")],
    data: Data = None,
    port: Annotated[int | None, typer.Option("--port", help="Where it answers (default: 8080).", show_default=False)] = None,
    runtime: Annotated[
        str | None, typer.Option("--runtime", help="What runs workspaces (default: auto).", show_default=False)
    ] = None,
    unconfined: Unconfined = False,
) -> None:
    """Parts of the product, on services that are there already: any number of each."""
    settings = settings_here(data=data, port=port, runtime=runtime, unconfined=unconfined or None)
    from torpor.assemble import run_serve
    from torpor.assemble.roles import parts_of

    raise typer.Exit(run_serve(settings, parts_of(role)))


def down(
    data: Data = None,
    timeout: Annotated[float, typer.Option("--timeout", metavar="SECONDS", min=0, help="How long to wait.")] = DOWN_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Stop a `torpor up`, and wait for its end."""
    place = settings_here(data=data).data
    pid = running_pid(place)
    if pid is None:
        raise CommandError(ExitCode.REFUSED, f"torpor is not up in {place}", code="not_up", advice="`torpor up` starts it")
    if not is_torpor(argv_of(pid)):
        raise CommandError(
            ExitCode.REFUSED,
            f"process {pid}, which holds {place}, does not look like `torpor up`, and was left alone",
            code="not_torpor",
            advice=f"look at it with `ps -fp {pid}`",
        )
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + timeout
    while running_pid(place) is not None:
        if time.monotonic() >= deadline:
            raise CommandError(
                ExitCode.TIMED_OUT,
                f"torpor (process {pid}) was told to stop and has not ended after {timeout:g} s",
                code="wait_timed_out",
                advice=f"it may still do so; {place / LOG_FILE} may say why, if it was detached",
            )
        time.sleep(POLL_S)
    show_json({"pid": pid}) if as_json else show_line(f"torpor has stopped (process {pid})")


def doctor(data: Data = None, as_json: Json = False) -> None:
    """What this machine offers, what it lacks, what to do."""
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
    provider: Annotated[str, typer.Argument(help="Where so much is missing that nothing is touched; `torpor doctor` says.")],
    as_json: Json = False,
) -> None:
    """Say that homes which disappeared at once are really gone."""
    with api_here() as api:
        api.release(provider)
    show_json({"released": provider}) if as_json else show_line(f"{provider} is no longer held back")


def migrate(
    admin: Annotated[
        str | None,
        typer.Option("--admin", metavar="NAME", help="Also create the first administrator.", show_default=False),
    ] = None,
    as_json: Json = False,
) -> None:
    """Bring an external database to this version's schema."""
    settings = settings_here()
    url = _database_url(settings)
    import asyncio

    from torpor.store.migrate import migrate as bring_up_to_date

    applied = list(asyncio.run(bring_up_to_date(url)))
    if not as_json:
        for line in [f"applied {name}" for name in applied] or ["the schema is up to date"]:
            show_line(line)
    told: dict[str, object] = {"items": applied}
    if admin is not None:
        from torpor.assemble.first_admin import create_first_admin

        password = asyncio.run(create_first_admin(url, admin))
        told["admin"] = {"username": admin, "password": password}
        if not as_json:
            show_line(f"created administrator {admin} with the one-time password {password}")
            show_line(f"sign in at {settings.base_url}, then set your own password on the page Account")
    if as_json:
        show_json(told)


def _database_url(settings: "Settings") -> str:
    if settings.database_url is None:
        raise usage(
            "there is no database to migrate",
            "set TORPOR_DATABASE_URL or database_url in torpor.toml; `torpor up` migrates its own by itself",
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
        # How to sign in stands in it.
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
        # Nobody would know of it.
        process.terminate()
        raise
    # It outlives this process on purpose.
    process.returncode = 0
    show_json({"ready": ready, "pid": process.pid, "log": str(log)}) if as_json else show_bytes(f"{ready}\n".encode())


def _ready_line(process: "subprocess.Popen[bytes]", log: Path, began_at: int) -> str:
    deadline = time.monotonic() + READY_TIMEOUT_S
    while True:
        code = process.poll()
        lines = _lines_since(log, began_at)
        ready = next((line for line in lines if READY in line), None)
        if code is not None:
            what = f"torpor ended before it was ready (exit code {code}); the last it said was:"
            raise CommandError(
                ExitCode(code) if code in list(ExitCode)[1:] else ExitCode.REFUSED,
                what,
                code="not_ready",
                more=lines[-LAST_LINES:],
            )
        if ready is not None:
            return ready
        if time.monotonic() >= deadline:
            what = f"torpor was not ready after {READY_TIMEOUT_S:g} s and was stopped; the last it said was:"
            raise CommandError(
                ExitCode.TIMED_OUT, what, code="wait_timed_out", advice=f"all of it is in {log}", more=lines[-LAST_LINES:]
            )
        time.sleep(POLL_S)


def _lines_since(log: Path, began_at: int) -> list[str]:
    with log.open("rb") as file:
        file.seek(began_at)
        whole, _, _ = file.read().rpartition(b"\n")
    return whole.decode("utf-8", "replace").splitlines()
