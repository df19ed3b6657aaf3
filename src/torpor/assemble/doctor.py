"""Examine this machine: what Torpor can use, what is missing, and what to do about it (`torpor doctor`)."""

import asyncio
import json
import os
import shutil
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import asyncpg

from torpor.archives.archives import HomeArchives
from torpor.assemble import archive_directory
from torpor.assemble.archive_directory import ArchiveDirectory
from torpor.assemble.engine_findings import engine_confinement, engine_findings
from torpor.assemble.finding import Finding
from torpor.assemble.kubernetes_wiring import kubernetes_findings
from torpor.assemble.templates import CHECK
from torpor.bus.redis import Bus
from torpor.domain.disk import Disk, shortage, size
from torpor.domain.errors import Hopeless, Refused, TorporError
from torpor.domain.unconfined import ONE_USER, SEVERAL_USERS
from torpor.paths import CREDENTIALS_FILE
from torpor.runtimes.process import package_indexes
from torpor.runtimes.process.confinement import (
    CPU_IS_A_WEIGHT,
    DISK_IS_NOT_ENFORCED,
    NETWORK,
    OPEN_PORT,
    cores_are_enforced,
    missing_protections,
    ports_are_open,
)
from torpor.runtimes.process.options import ProcessOptions
from torpor.runtimes.process.paths import runtime_paths
from torpor.runtimes.process.runtime import ProcessRuntime
from torpor.secret_key import SecretKey
from torpor.settings import Settings
from torpor.store.database import translate_startup_errors
from torpor.templates.catalogue import load_catalogue

OLDEST_POSTGRESQL = 15
ANSWERS_WITHIN_S = 2.0


async def examine(settings: Settings) -> list[Finding]:
    """What this machine has, what it lacks, and what to do about it. It changes no files."""
    findings = [_python_finding(), _data_finding(settings), disk_finding(settings)]
    findings += [await _database_finding(settings), await _bus_finding(settings), await archives_finding(settings)]
    findings += [*template_findings(settings), *secret_key_findings(settings)]
    if settings.runtime == "kubernetes":
        findings += await kubernetes_findings(settings)
    else:
        findings += await engine_findings(settings)
        findings += await engine_confinement(settings) if settings.uses_engine else await confinement_findings(settings)
    if not any(one.what == f"confinement: {NETWORK}" and not one.ok for one in findings):
        findings += await index_findings(settings, os.environ)
    findings += await asyncio.to_thread(running_findings, settings)
    return findings


def template_findings(settings: Settings) -> list[Finding]:
    """The administrator's templates; a broken one is not offered, and workspaces that use it do not start."""
    if settings.templates_dir is None:
        return []
    catalogue = load_catalogue(settings.templates_dir, settings.image_policy)
    broken = [
        Finding(f"template {one.name}" if one.name else "templates", False, "; ".join(one.faults), CHECK)
        for one in catalogue.broken
    ]
    if broken:
        return broken
    names = ", ".join(sorted(catalogue.added)) or "none"
    return [Finding("templates", True, f"of {settings.templates_dir}: {names}")]


def secret_key_findings(settings: Settings) -> list[Finding]:
    """The key that encrypts secrets; none while there is no secret."""
    path = settings.secret_key_path
    try:
        key = SecretKey(path).read()
    except Refused as refused:
        return [Finding("secret key", False, refused.message, "workspaces with secrets do not start before it is corrected")]
    if key is not None:
        return [Finding("secret key", True, f"{path}; include it in your backups")]
    if settings.secret_key_file is None:
        return []
    return [Finding("secret key", True, f"{path} does not exist; the first secret creates it")]


async def confinement_findings(settings: Settings) -> list[Finding]:
    """What separates workspaces on this machine, and what a missing protection means for users."""
    runtime = ProcessRuntime(
        settings.data,
        options=ProcessOptions(
            grace_s=settings.workspace_stop_grace,
            blocked_networks=settings.blocked_networks,
            allowed_networks=settings.allowed_networks,
        ),
    )
    try:
        abilities = await runtime.abilities()
    except Hopeless as error:
        return [
            Finding(
                "confinement",
                False,
                error.message,
                "correct this: Torpor does not start before it knows how workspaces can be confined",
                blocks=True,
            )
        ]
    findings = [Finding(f"confinement: {one.what}", one.confined, one.how, one.remedy) for one in abilities]
    is_missing_here = bool(missing_protections(abilities, is_root=os.getuid() == 0))
    said = await asyncio.to_thread(_running_confinement, settings)
    is_missing, is_accepted = (is_missing_here, settings.unconfined) if said is None else said
    if is_missing:
        advice = (
            ""
            if is_missing_here
            else "restart Torpor: this machine can confine workspaces now, but could not when Torpor was started"
        )
        findings.append(Finding("users", is_accepted, SEVERAL_USERS if is_accepted else ONE_USER, advice))
    cores = "Cores are limited by a quota." if cores_are_enforced(abilities) else CPU_IS_A_WEIGHT
    findings.append(Finding("sizes", True, f"{cores} {DISK_IS_NOT_ENFORCED}"))
    if ports_are_open(abilities):
        findings.append(Finding("ports", False, OPEN_PORT))
    return findings


async def index_findings(settings: Settings, environ: Mapping[str, str]) -> list[Finding]:
    """Package indexes and proxies that this machine uses and workspaces cannot reach, because they have their own network."""
    hosts = package_indexes.configured_hosts(environ, package_indexes.index_files(environ))
    blocked, allowed = settings.blocked_networks, settings.allowed_networks
    closed = await package_indexes.unreachable_indexes(hosts, blocked=blocked, allowed=allowed)
    return [Finding("package index", False, one.what, one.remedy) for one in closed]


def _running_confinement(settings: Settings) -> tuple[bool, bool] | None:
    """Whether a protection is missing where the Torpor of this data directory runs, and whether it accepts several users.

    None when it does not run, or has no controller. It may run with other settings than this command.
    """
    try:
        controllers = _ask(_product(settings), "/api/v1/confinement")["items"]
        lacking = [one["is_accepted"] for one in controllers if one["missing"]]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return (bool(lacking), all(lacking)) if controllers else None


async def archives_finding(settings: Settings) -> Finding:
    if settings.archive_url is None:
        seen = await asyncio.to_thread(archive_directory.inspect, settings.data)
        if seen is ArchiveDirectory.NEW:
            return Finding("archive store", True, "`torpor up` creates it in the data directory")
        if seen is ArchiveDirectory.LOST:
            lost = archive_directory.missing_message(settings.data)
            return Finding("archive store", False, lost, archive_directory.ADVICE, blocks=True)
    is_ok = await HomeArchives(settings.archives_at).reachable()
    return Finding(
        "archive store",
        is_ok,
        "reachable" if is_ok else "cannot be reached or written to",
        "" if is_ok else "check TORPOR_ARCHIVE_URL, the permissions of the store, and whether its disk is mounted",
        blocks=not is_ok,
    )


def running_findings(settings: Settings) -> list[Finding]:
    """What a running Torpor reports about itself; empty when none runs."""
    product = _product(settings)
    try:
        said = _ask(product, "/health/ready")
    except (OSError, ValueError):
        return []
    if not isinstance(said, dict):
        return []
    held_back = [
        Finding(
            f"homes at {provider}",
            False,
            "so many homes are missing at once that Torpor changes nothing there",
            f"restore the missing homes (is a disk not mounted?); if they are lost, run: torpor release {provider}",
        )
        for provider in said.get("held_back", [])
    ]
    stalled = [
        Finding(f"loop {name}", False, "it made no progress in time and was restarted", "search the log for loop_stalled")
        for name in said.get("stalled_loops", [])
    ]
    return [Finding("running", bool(said.get("ready")), f"{product.url} responds"), *held_back, *stalled]


@dataclass(frozen=True, slots=True)
class _Product:
    url: str
    token: str = ""


def _product(settings: Settings) -> _Product:
    """The URL of the Torpor of this data directory, which `up` writes into credentials.json."""
    try:
        known = json.loads((settings.data / CREDENTIALS_FILE).read_text(encoding="utf-8"))
        return _Product(str(known["url"]), str(known["token"]))
    except (OSError, ValueError, KeyError, TypeError):
        return _Product(settings.base_url)


def _ask(product: _Product, path: str) -> Any:
    request = urllib.request.Request(  # noqa: S310
        f"{product.url}{path}", headers={"Authorization": f"Bearer {product.token}"} if product.token else {}
    )
    try:
        with urllib.request.urlopen(request, timeout=ANSWERS_WITHIN_S) as answer:  # noqa: S310
            return json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return json.loads(error.read())


def _python_finding() -> Finding:
    return Finding("Python", sys.version_info >= (3, 11), sys.version.split()[0], blocks=sys.version_info < (3, 11))


def _data_finding(settings: Settings) -> Finding:
    nearest = next(path for path in (settings.data, *settings.data.parents) if path.exists())
    ok = os.access(nearest, os.W_OK)
    detail = f"{settings.data}" if ok else f"{nearest} cannot be written to"
    return Finding("data directory", ok, detail, "" if ok else "choose another with --data or TORPOR_DATA", blocks=not ok)


def disk_finding(settings: Settings) -> Finding:
    homes = runtime_paths(settings.data).volumes
    nearest = next(path for path in (homes, *homes.parents) if path.exists())
    free_bytes = shutil.disk_usage(nearest).free
    short = shortage(Disk(str(nearest), free_bytes), settings.disk_reserve_bytes)
    if short is None:
        return Finding("free disk space", True, size(free_bytes))
    return Finding("free disk space", False, f"no workspace can be started: {short}")


async def _database_finding(settings: Settings) -> Finding:
    if settings.database_url is None:
        return Finding("database", True, "embedded PostgreSQL in the data directory")
    try:
        with translate_startup_errors():
            connection = await asyncpg.connect(settings.database_url.get_secret_value())
            version = connection.get_server_version()
            await connection.close()
    except TorporError as error:
        return Finding("database", False, error.message, "check TORPOR_DATABASE_URL", blocks=True)
    enough = version.major >= OLDEST_POSTGRESQL
    advice = "" if enough else f"use PostgreSQL {OLDEST_POSTGRESQL} or newer"
    return Finding("database", enough, f"PostgreSQL {version.major}.{version.minor} is reachable", advice, blocks=not enough)


async def _bus_finding(settings: Settings) -> Finding:
    if settings.redis_url is None:
        return Finding("bus", True, "embedded Valkey in the data directory")
    try:
        bus = await Bus.open(settings.redis_url.get_secret_value())
    except TorporError as error:
        return Finding("bus", False, error.message, "check TORPOR_REDIS_URL", blocks=True)
    answers = await bus.reachable()
    await bus.close()
    advice = (
        ""
        if answers
        else "check TORPOR_REDIS_URL; until it is reachable, changes take longer and no workspace is stopped automatically"
    )
    return Finding("bus", answers, "reachable" if answers else "cannot be reached", advice)
