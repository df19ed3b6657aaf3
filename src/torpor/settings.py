"""Which knobs are there, in which unit, with which default, and why?

Command line, then environment (`TORPOR_` and the name in capitals), then `torpor.toml`, then the default here. `load` is pure:
it is handed what it reads. A wrong value is refused with its name, the value, and what is allowed.
"""

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator, model_validator

from torpor.domain.before_sleep import BEFORE_SLEEP_S
from torpor.domain.errors import Refused
from torpor.domain.limits import RunningLimits
from torpor.domain.networks import BLOCKED, parse_networks
from torpor.domain.retention import Retention
from torpor.domain.states import Operation
from torpor.domain.tuning import Tuning
from torpor.paths import SETTINGS_FILE, default_data

PREFIX = "TORPOR_"

# Variables that are no settings, and what they are for.
OTHER_VARIABLES: Mapping[str, str] = {
    "TORPOR_CONFIG": "The file with the settings, instead of `torpor.toml` in the current folder.",
    "TORPOR_URL": "The address of the Torpor that commands ask.",
    "TORPOR_TOKEN": "The token that commands use.",
    "TORPOR_TRACEBACK": "Any value: an unexpected error of a command is shown with its traceback.",
    "TORPOR_WORKSPACE": "Set inside a workspace: its name.",
    "TORPOR_SETUP_PACKAGES": "`no`: `make` installs no system packages.",
    "TORPOR_REQUIRE_CONFINEMENT": "`1`: tests that need confinement fail where it is missing.",
    "TORPOR_SLOW_TESTS": "`1`: tests that install programs run as well.",
}
# The sort and tests may have variables of their own.
OTHER_PREFIXES = ("TORPOR_SORT_", "TORPOR_TEST_")
# Kubernetes and Docker set these for a service whose name begins with "torpor".
_SERVICE_LINK = re.compile(r"\w+_SERVICE_(HOST|PORT)(_\w+)?|\w+_PORT_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?")
_SERVICE_ADDRESS = re.compile(r"(tcp|udp|sctp)://.*")

Seconds = Annotated[float, Field(gt=0, le=10 * 365 * 86_400)]


class Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    data: Path = Field(description="The data directory: database, volumes, archives and credentials.json of `torpor up`.")
    port: int = Field(8080, ge=1, le=65535, description="Where the product answers.")
    listen: str = Field("127.0.0.1,::1", description="The addresses it listens on, with commas between them.")
    public_url: str | None = Field(
        None,
        description="Where people reach the platform, such as https://torpor.example.com; default: localhost and the port.",
    )
    domain: str | None = Field(
        None,
        description="Workspaces are {name}.{domain}; default: the host of public_url. A domain of their own is safest.",
    )
    trusted_proxies: str = Field(
        "", description="Addresses (or networks) of proxies in front of this one, whose X-Forwarded-* headers are believed."
    )
    connections_per_address: int = Field(
        256,
        ge=1,
        description="How many connections one client address (IPv6: one /64) may have, so that none uses up all descriptors. "
        "For a trusted proxy, its requests under way count for the addresses that it forwards; any other counts as one client.",
    )
    api_url: str | None = Field(
        None, description="Where a process with the role proxy alone finds the API, such as http://10.0.0.5:8080."
    )
    wake_patience: Seconds = Field(60, description="Seconds for which a program's request is held while its workspace wakes.")
    drain_grace: Seconds = Field(30, description="Seconds that open connections have left when the proxy is told to stop.")
    session_ttl: Seconds = Field(30 * 86_400, description="Seconds after which a browser must sign in again.")
    oidc_issuer: str | None = Field(None, description="An OpenID Connect provider that people may sign in with.")
    oidc_client_id: str | None = Field(None, description="What that provider calls this installation.")
    oidc_client_secret: SecretStr | None = Field(None, description="The secret that goes with it.")
    oidc_name: str = Field("single sign-on", description="What the button says.")
    oidc_admins: str = Field(
        "",
        description="Who of them is made an administrator, at each sign-in: subjects or verified e-mail addresses, with commas "
        "between them. Who is taken off this list stays one until `torpor users change` says otherwise.",
    )
    database_url: SecretStr | None = Field(
        None, description="Any PostgreSQL 15 or newer; without it a private one is started in the data directory."
    )
    redis_url: SecretStr | None = Field(
        None, description="Any Redis 6.2 or Valkey; without it a private one is started in the data directory."
    )
    archive_url: SecretStr | None = Field(
        None,
        description="Where homes sleep: file:///dir, s3://bucket/prefix, gs://, az://; default: in the data directory.",
    )
    runtime: Literal["auto", "process", "fake"] = Field(
        "auto",
        description="What runs workspaces. `process`: programs on this machine, confined as far as it allows; `auto` takes it. "
        "`fake` runs nothing: it is for trials.",
    )
    unconfined: bool = Field(
        False,
        description="Accept several users where workspaces are not confined from each other (files, processes, network): "
        "`true`, or --unconfined. Without it such an installation is for one user.",
    )
    fake_engine: Path | None = Field(None, description="The socket of the engine behind the runtime `fake`.")
    log_format: Literal["console", "json"] = Field("console", description="How log lines look.")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="The least important log lines that are written."
    )

    reconciler_interval: Seconds = Field(10, description="Seconds between two looks at everything.")
    reconciler_active_interval: Seconds = Field(2, description="Seconds between two looks at what is under way.")
    reconciler_parallel: int = Field(
        8,
        ge=1,
        le=1000,
        description="How many archives, as many restores, and four times as many other effects a controller runs at once; "
        "one user's take at most half of each.",
    )
    reconciler_max_retries: int = Field(3, ge=0, le=100, description="How often a failed attempt is tried again.")
    reconciler_retry_backoff: Seconds = Field(30, description="Seconds before the first retry; it doubles with each.")
    reconciler_retry_backoff_max: Seconds = Field(300, description="Seconds beyond which a retry is not put off.")
    reconciler_provisioning_timeout: Seconds = Field(300, description="Seconds PROVISIONING may make no progress.")
    reconciler_restoring_timeout: Seconds = Field(1800, description="Seconds RESTORING may make no progress.")
    reconciler_starting_timeout: Seconds = Field(300, description="Seconds STARTING may make no progress.")
    reconciler_stopping_timeout: Seconds = Field(300, description="Seconds STOPPING may make no progress.")
    reconciler_archiving_timeout: Seconds = Field(1800, description="Seconds ARCHIVING may make no progress.")
    reconciler_deleting_timeout: Seconds = Field(300, description="Seconds DELETING may make no progress.")
    coordinator_lock_id: int = Field(
        12345,
        ge=-(2**63),
        lt=2**63,
        description="The advisory lock that the leader of a database's controllers holds; unique in that database.",
    )
    coordinator_retry_interval: Seconds = Field(5, description="Seconds between two attempts to lead.")
    coordinator_node_id: str | None = Field(
        None, min_length=1, max_length=200, description="What this process is called; default: the host's name and process id."
    )
    coordinator_heartbeat: Seconds = Field(2, description="Seconds between two signs of life of a controller.")
    coordinator_expiry: Seconds = Field(
        10, description="Seconds without a sign of life after which others take over; several times the heartbeat."
    )

    ttl_interval: Seconds = Field(60, description="Seconds between two looks for workspaces that nobody uses.")
    connection_lease: float = Field(
        30, ge=2, le=3600, description="Seconds after which a connection through a proxy that died is forgotten."
    )
    foreground_ttl: Seconds = Field(
        8 * 3600,
        description="Seconds after its last input, output or CPU use for which a terminal's foreground command keeps it awake.",
    )
    before_sleep_timeout: Seconds = Field(
        BEFORE_SLEEP_S,
        description="Seconds that a workspace's `before_sleep` command may take; then it is ended, and the workspace stopped.",
    )
    gc: Literal["on", "off"] = Field(
        "on", description="Whether archives are collected at all; `off` while a database is restored from a backup."
    )
    gc_interval: Seconds = Field(3600, description="Seconds between two collections of archives that nobody refers to.")
    gc_grace: Seconds = Field(7200, description="Seconds between finding an archive to be an orphan and removing it.")
    gc_keep: int = Field(5, ge=1, description="How many of its last archives a workspace keeps in any case.")
    undelete_grace: Seconds = Field(7 * 86_400, description="Seconds in which a deleted workspace can be had back.")
    name_reserved_for: float = Field(
        86_400,
        ge=0,
        le=10 * 365 * 86_400,
        description="Seconds for which the name of a deleted or renamed workspace stays reserved for its owner: browsers keep "
        "what its pages left under its host name.",
    )
    events_retention: Seconds = Field(86_400, description="Seconds for which missed events can be replayed.")
    events_heartbeat: float = Field(30, gt=0, le=300, description="Seconds between two signs of life on a stream of events.")

    max_running_per_user: int = Field(2, ge=0, description="How many workspaces of one user may run at once.")
    max_running_global: int = Field(100, ge=0, description="How many workspaces may run at once in all.")
    standby_ttl: int = Field(300, ge=1, description="Seconds without use before a new workspace sleeps.")
    archive_ttl: int = Field(86_400, ge=1, description="Seconds asleep before a new workspace is archived.")

    workspace_memory_mb: int = Field(2048, ge=16, description="MiB of memory one workspace may use.")
    workspace_processes: int = Field(512, ge=8, description="Processes and threads one workspace may have.")
    workspace_stop_grace: Seconds = Field(10, description="Seconds between asking a workspace to end and killing it.")
    workspace_blocked_networks: str = Field(
        ", ".join(BLOCKED),
        description="Addresses and networks that workspaces may not reach, with commas between them. By default the "
        "private ones (RFC 1918, carrier-grade NAT, link-local, unique local), where machines trust their neighbours, and "
        "where clouds hand out credentials. The nameservers of workspaces stay open on port 53.",
    )
    workspace_allowed_networks: str = Field(
        "",
        description="Addresses and networks that workspaces may reach although they are blocked, such as a package index in "
        "your own network: `10.1.2.3, fd12::/64`. Wins over workspace_blocked_networks; this machine itself stays closed.",
    )

    disk_reserve: int = Field(
        1024,
        ge=0,
        description="MiB that stay free on the disk of the homes, for database, bus and archives: below it no workspace "
        "is started or restored, and below half of it those that write are paused. `0`: no such check.",
    )

    @field_validator("public_url", "api_url", "oidc_issuer", mode="after")
    @classmethod
    def _is_an_origin(cls, value: str | None) -> str | None:
        if value is None:
            return None
        parts = urlsplit(value)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment or parts.username:
            raise ValueError("must be http://HOST or https://HOST, with or without a port")
        return value

    @field_validator("public_url", "api_url", mode="after")
    @classmethod
    def _has_no_path(cls, value: str | None) -> str | None:
        # An origin has none, and by it a browser's requests are recognised as the platform's own.
        if value is not None and urlsplit(value).path not in ("", "/"):
            raise ValueError("must be http://HOST or https://HOST, with or without a port, and without a path")
        return value

    @field_validator("domain", mode="after")
    @classmethod
    def _is_a_host(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?", value):
            raise ValueError("must be a host name in lower case, such as workspaces.example.com")
        return value

    @field_validator("workspace_blocked_networks", "workspace_allowed_networks", mode="after")
    @classmethod
    def _are_networks(cls, value: str) -> str:
        return ", ".join(parse_networks(value))

    @field_validator("data", mode="after")
    @classmethod
    def _absolute(cls, value: Path) -> Path:
        return value.expanduser().absolute()

    @model_validator(mode="after")
    def _knows_its_provider(self) -> "Settings":
        if self.oidc_issuer is not None and (self.oidc_client_id is None or self.oidc_client_secret is None):
            raise ValueError("oidc_issuer needs oidc_client_id and oidc_client_secret")
        return self

    @model_validator(mode="after")
    def _outlives_a_missed_heartbeat(self) -> "Settings":
        if self.coordinator_expiry < 2 * self.coordinator_heartbeat:
            raise ValueError(
                f"coordinator_expiry ({self.coordinator_expiry:g} s) must be at least twice coordinator_heartbeat "
                f"({self.coordinator_heartbeat:g} s)"
            )
        return self

    @property
    def base_url(self) -> str:
        return (self.public_url or f"http://localhost:{self.port}").rstrip("/")

    @property
    def workspace_domain(self) -> str:
        """What follows a workspace's name in its host name."""
        return self.domain or urlsplit(self.base_url).hostname or "localhost"

    @property
    def archives_at(self) -> str:
        if self.archive_url is not None:
            return self.archive_url.get_secret_value()
        return (self.data / "archives").as_uri()

    @property
    def blocked_networks(self) -> tuple[str, ...]:
        return parse_networks(self.workspace_blocked_networks)

    @property
    def allowed_networks(self) -> tuple[str, ...]:
        return parse_networks(self.workspace_allowed_networks)

    @property
    def knobs(self) -> Tuning:
        return Tuning(
            timeouts_s={
                Operation.PROVISIONING: self.reconciler_provisioning_timeout,
                Operation.RESTORING: self.reconciler_restoring_timeout,
                Operation.ACCEPTING: self.reconciler_provisioning_timeout,
                Operation.STARTING: self.reconciler_starting_timeout,
                Operation.STOPPING: self.reconciler_stopping_timeout,
                Operation.ARCHIVING: self.reconciler_archiving_timeout,
                Operation.CREATE_EMPTY_ARCHIVE: self.reconciler_provisioning_timeout,
                Operation.DELETING: self.reconciler_deleting_timeout,
            },
            max_retries=self.reconciler_max_retries,
            retry_base_s=self.reconciler_retry_backoff,
            retry_cap_s=self.reconciler_retry_backoff_max,
            disk_reserve_bytes=self.disk_reserve_bytes,
            before_sleep_s=self.before_sleep_timeout,
        )

    @property
    def disk_reserve_bytes(self) -> int:
        return self.disk_reserve << 20

    @property
    def retention(self) -> Retention:
        return Retention(
            keep=self.gc_keep,
            grace=timedelta(seconds=self.gc_grace),
            undelete_grace=timedelta(seconds=self.undelete_grace),
        )

    @property
    def running_limits(self) -> RunningLimits:
        return RunningLimits(per_user=self.max_running_per_user, overall=self.max_running_global)


def load(
    environ: Mapping[str, str], *, toml: tuple[Path, str] | None = None, overrides: Mapping[str, Any] | None = None
) -> Settings:
    """The settings, from what the command line, the environment and the file say; Refused `bad_setting` when they cannot be."""
    _refuse_misspelt(environ)
    said: dict[str, tuple[str, Any]] = {"data": ("the default", default_data(environ))}
    if toml is not None:
        said |= _from_toml(*toml)
    for name in Settings.model_fields:
        if environ.get(PREFIX + name.upper()):
            said[name] = (f"the environment's {PREFIX}{name.upper()}", environ[PREFIX + name.upper()])
    for name, value in (overrides or {}).items():
        if value is not None:
            said[name] = (f"--{name.replace('_', '-')}", value)
    try:
        return Settings(**{name: value for name, (_, value) in said.items()})
    except ValidationError as error:
        raise Refused("bad_setting", "\n".join(_explain(one, said) for one in error.errors())) from None


def _refuse_misspelt(environ: Mapping[str, str]) -> None:
    """A setting that is not set because its name is wrong would be missed only when it matters."""
    known = {PREFIX + name.upper() for name in Settings.model_fields} | OTHER_VARIABLES.keys()
    unknown = sorted(
        name
        for name, value in environ.items()
        if value
        and name.startswith(PREFIX)
        and name not in known
        and not name.startswith(OTHER_PREFIXES)
        and not _SERVICE_LINK.fullmatch(name)
        and not _SERVICE_ADDRESS.fullmatch(value)
    )
    if unknown:
        raise Refused("bad_setting", "\n".join(_misspelt(name, known) for name in unknown))


def _misspelt(name: str, known: Iterable[str]) -> str:
    # Without the prefix, which would make everything similar.
    near = difflib.get_close_matches(name.removeprefix(PREFIX), sorted(one.removeprefix(PREFIX) for one in known), n=1)
    return f"the environment's {name} is not a setting" + (f"; did you mean {PREFIX}{near[0]}?" if near else "")


def find_toml(environ: Mapping[str, str], folder: Path) -> tuple[Path, str] | None:
    """The file that `TORPOR_CONFIG` names, or `torpor.toml` in this folder, if there is one."""
    named = environ.get(f"{PREFIX}CONFIG")
    path = Path(named) if named else folder / SETTINGS_FILE
    try:
        return path, path.read_text(encoding="utf-8")
    except FileNotFoundError:
        if named:
            raise Refused("bad_setting", f"{PREFIX}CONFIG names {path}, and there is no such file") from None
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise Refused("bad_setting", f"{path} cannot be read: {error}") from None


def _from_toml(path: Path, text: str) -> dict[str, tuple[str, Any]]:
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise Refused("bad_setting", f"{path} is not valid TOML: {error}") from None
    unknown = sorted(table.keys() - Settings.model_fields.keys())
    if unknown:
        allowed = ", ".join(sorted(Settings.model_fields))
        raise Refused("bad_setting", f"{path} sets {', '.join(unknown)}, which is no setting; allowed are: {allowed}")
    return {name: (f"{name} in {path}", value) for name, value in table.items()}


# Never printed, not even when they are wrong.
SECRET = frozenset(name for name, field in Settings.model_fields.items() if field.annotation == SecretStr | None)


def _explain(error: Any, said: Mapping[str, tuple[str, Any]]) -> str:
    wrong = str(error["msg"]).removeprefix("Value error, ")
    if not error["loc"]:
        return f"the settings do not fit together: {wrong}"
    name = str(error["loc"][0])
    where, value = said.get(name, ("?", "?"))
    shown = "that value" if name in SECRET else repr(str(value))
    return f"{where}: {shown} is not allowed: {wrong}"
