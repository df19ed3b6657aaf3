"""Define every setting, with its unit, default and meaning, and load them.

The command line comes first, then the environment (`TORPOR_` and the name in capitals), then `torpor.toml`, then the default
here; no other module has a default of its own. `load` is pure: its arguments are all it reads. A wrong value is refused with
its name, the value, and what is allowed.
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

from torpor.domain.errors import Refused
from torpor.domain.idle import Ttls
from torpor.domain.image_policy import ImagePolicy, parse_allowlist, policy_of_runtime
from torpor.domain.image_reference import image_fault
from torpor.domain.limits import RunningLimits
from torpor.domain.networks import BLOCKED, parse_networks
from torpor.domain.retention import GcPolicy, Retention
from torpor.domain.sizes import WorkspaceSize
from torpor.domain.states import Operation
from torpor.domain.tuning import Intervals, Tuning
from torpor.paths import SECRET_KEY_FILE, SETTINGS_FILE, default_data

PREFIX = "TORPOR_"

# Variables that are not settings, and their purpose.
OTHER_VARIABLES: Mapping[str, str] = {
    "TORPOR_CONFIG": "The settings file, instead of `torpor.toml` in the current folder.",
    "TORPOR_URL": "The URL of the Torpor that commands call.",
    "TORPOR_TOKEN": "The API token that commands use.",
    "TORPOR_TRACEBACK": "Any value: a command shows the traceback of an unexpected error.",
    "TORPOR_WORKSPACE": "Set inside a workspace: the workspace's name.",
    "TORPOR_SETUP_PACKAGES": "`no`: `make` installs no system packages.",
    "TORPOR_REQUIRE_CONFINEMENT": "`1`: tests that need confinement fail on a machine without it.",
    "TORPOR_SLOW_TESTS": "`1`: also run tests that install programs.",
}
# Variables of the sort and of tests.
OTHER_PREFIXES = ("TORPOR_SORT_", "TORPOR_TEST_")
# Kubernetes and Docker set these for a service whose name begins with "torpor".
_SERVICE_LINK = re.compile(r"\w+_SERVICE_(HOST|PORT)(_\w+)?|\w+_PORT_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?")
_SERVICE_ADDRESS = re.compile(r"(tcp|udp|sctp)://.*")

Seconds = Annotated[float, Field(gt=0, le=10 * 365 * 86_400)]


SOCKETS = {"docker": "unix:///run/docker.sock", "podman": "unix:///run/podman/podman.sock"}
"""The usual socket of each engine."""


class Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    data: Path = Field(description="The data directory of `torpor up`: database, volumes, archives and credentials.json.")
    port: int = Field(8080, ge=1, le=65535, description="The port that Torpor listens on.")
    listen: str = Field("127.0.0.1,::1", description="The addresses that Torpor listens on, separated by commas.")
    metrics_port: int | None = Field(
        None,
        ge=1,
        le=65535,
        description="A port of its own for /health and /metrics of this process, which answers for any host name: for "
        "monitoring and probes that know only an address. The other port has no /metrics then. Default: `port` has both.",
    )
    public_url: str | None = Field(
        None,
        description="The URL at which users reach Torpor, such as https://torpor.example.com. Default: localhost and the port.",
    )
    domain: str | None = Field(
        None,
        description="The host name of a workspace is {name}.{domain}. Default: the host of public_url. "
        "A separate domain for workspaces is safest.",
    )
    trusted_proxies: str = Field(
        "", description="Addresses or networks of proxies in front of Torpor whose X-Forwarded-* headers are trusted."
    )
    connections_per_address: int = Field(
        256,
        ge=1,
        description="How many connections one client address (IPv6: one /64) can have, so that no client uses up all file "
        "descriptors. Requests through a trusted proxy count for the client addresses that it forwards; any other proxy "
        "counts as one client.",
    )
    api_url: str | None = Field(
        None, description="The URL of the API for a process that has only the role proxy, such as http://10.0.0.5:8080."
    )
    wake_patience: Seconds = Field(60, description="Seconds that a program's request waits while its workspace wakes.")
    drain_grace: Seconds = Field(30, description="Seconds that open connections have to finish when the proxy stops.")
    session_ttl: Seconds = Field(30 * 86_400, description="Seconds after which a browser must sign in again.")
    oidc_issuer: str | None = Field(None, description="The URL of an OpenID Connect provider for sign-in.")
    oidc_client_id: str | None = Field(None, description="The client ID of this installation at that provider.")
    oidc_client_secret: SecretStr | None = Field(None, description="The client secret for that client ID.")
    oidc_name: str = Field("single sign-on", description="The text of the sign-in button for that provider.")
    oidc_admins: str = Field(
        "",
        description="Users of that provider who become administrators when they sign in: subjects or verified e-mail "
        "addresses, separated by commas. A user whom you remove from this list stays an administrator until you run "
        "`torpor users change`.",
    )
    database_url: SecretStr | None = Field(
        None,
        description="The URL of a PostgreSQL, version 15 or newer. Default: a private one is started in the data directory.",
    )
    redis_url: SecretStr | None = Field(
        None,
        description="The URL of a Redis (6.2 or newer) or a Valkey. Default: a private one is started in the data directory.",
    )
    archive_url: SecretStr | None = Field(
        None,
        description="Where archives are stored: file:///dir, s3://bucket/prefix, gs://, az://. Default: in the data directory.",
    )
    runtime: Literal["auto", "process", "docker", "podman", "kubernetes", "fake"] = Field(
        "auto",
        description="What runs workspaces. `process`: programs on this machine, confined as far as the machine allows. "
        "`docker`, `podman`: containers of an engine on this machine. `kubernetes`: pods of a cluster. `auto`: the same as "
        "`process`. `fake` runs nothing and is for tests.",
    )
    accept_runtime: str | None = Field(
        None,
        description="The identity of a runtime, as an error message at the start of Torpor names it. Torpor starts with this "
        "runtime although the homes of its database are at another one. Homes that are not archived are then lost. To move "
        "them instead, use `torpor switch-runtime`.",
    )
    engine_url: str | None = Field(
        None,
        description="The socket of the engine, for the runtimes `docker` and `podman`. Only controllers use it. Default: "
        "unix:///run/docker.sock, unix:///run/podman/podman.sock.",
    )
    workspace_image: str = Field(
        "debian:bookworm-slim",
        min_length=1,
        description="The image of workspaces whose template names none, for the runtimes `docker`, `podman` and `kubernetes`.",
    )
    workspace_user: int = Field(
        1000,
        ge=1,
        lt=2**31,
        description="The number of the user and group of homes and of all processes of workspaces, for the runtimes `docker`, "
        "`podman` and `kubernetes`. Change it only while there is no home.",
    )
    kubernetes_config: Path | None = Field(
        None,
        description="The kubeconfig file, for the runtime `kubernetes`. Only controllers use it. Default: the service account "
        "of the pod that Torpor runs in, or KUBECONFIG, or ~/.kube/config.",
    )
    kubernetes_context: str | None = Field(None, min_length=1, description="The context in it. Default: the current one.")
    kubernetes_namespace: str | None = Field(
        None,
        pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$",
        description="The namespace of workspaces, which must exist. Default: that of the pod that Torpor runs in, or of the "
        "context.",
    )
    kubernetes_storage_class: str | None = Field(
        None, min_length=1, description="The storage class of homes. Default: that of the cluster."
    )
    kubernetes_volume_size: str = Field(
        "10Gi",
        pattern=r"^[1-9][0-9]*(Mi|Gi|Ti)$",
        description="The size of a home's volume, such as 500Mi or 20Gi. A smaller "
        "volume grows when its workspace starts, if the storage class permits that.",
    )
    kubernetes_access_mode: Literal["ReadWriteOnce", "ReadWriteOncePod", "ReadWriteMany"] = Field(
        "ReadWriteOnce",
        description="The access mode of homes. `ReadWriteOncePod`: the storage itself refuses a second pod, if it can.",
    )
    kubernetes_kit_image: str | None = Field(
        None,
        min_length=1,
        description="The image with Torpor's kit in /opt/torpor, in which jobs run. Default: `torpor-kit` with the tag of this "
        "version.",
    )
    kubernetes_pod_file: Path | None = Field(
        None,
        description="A YAML file with what your cluster needs in pods: nodeSelector, tolerations, affinity, imagePullSecrets, "
        "requests, priorityClassName, labels and others, for workspaces, for those of a template, and for jobs; and peers of "
        "NetworkPolicies. Default: none.",
    )
    templates_dir: Path | None = Field(
        None,
        description="A folder with templates of your own, one `.toml` file for each. A file with the name of a template that "
        "Torpor brings replaces it. Torpor reads them when it starts. Default: only the templates that Torpor brings.",
    )
    image_allowlist: str = Field(
        "",
        description="Patterns of the images that workspaces can run, separated by commas, such as `docker.io/library/*, "
        "registry.example.com/team/*`. They are compared with the full reference, and `*` also matches `/`. "
        "Default: all images. Only for runtimes that run images.",
    )
    registry_credentials: Path | None = Field(
        None,
        description="A file with the credentials of image registries, in the format of Docker's `config.json` (`auths`). It is "
        "read at each pull. Only for runtimes that run images. Default: none.",
    )
    secret_key_file: Path | None = Field(
        None,
        description="The file with the key of this installation: it encrypts the secrets of workspaces, and proves to the "
        "agents in containers who connects. With `torpor serve`, all processes need the same one. Default: `secrets.key` in "
        "the data directory, created when needed.",
    )
    accept_secret_key: str | None = Field(
        None,
        description="The id of a new key file that replaces the one that this installation had, for the runtimes `docker` and "
        "`podman`. Torpor names the id when it refuses the file. Default: another key file is refused.",
    )
    unconfined: bool = Field(
        False,
        description="`true` (or --unconfined) allows several users although workspaces are not confined from each other "
        "(files, processes, network). Default: such an installation has one user.",
    )
    fake_engine: Path | None = Field(None, description="The socket of the engine for the runtime `fake`.")
    log_format: Literal["console", "json"] = Field("console", description="The format of log lines.")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="The lowest level of log lines that are written."
    )

    reconciler_interval: Seconds = Field(10, description="Seconds between two full resyncs of the controller.")
    reconciler_active_interval: Seconds = Field(
        2, description="Seconds between two reconcile passes over workspaces with an operation in progress."
    )
    reconciler_parallel: int = Field(
        8,
        ge=1,
        le=1000,
        description="How many archive operations a controller runs at once; the same number of restores, and four times as "
        "many other effects. Copies for forks are at most four. One user's workspaces use at most half of each.",
    )
    reconciler_max_retries: int = Field(3, ge=0, le=100, description="How many times a failed operation is retried.")
    reconciler_retry_backoff: Seconds = Field(
        30, description="Seconds before the first retry. The delay doubles with each retry."
    )
    reconciler_retry_backoff_max: Seconds = Field(300, description="The longest delay before a retry, in seconds.")
    reconciler_provisioning_timeout: Seconds = Field(
        300, description="Seconds without progress after which PROVISIONING fails."
    )
    reconciler_restoring_timeout: Seconds = Field(1800, description="Seconds without progress after which RESTORING fails.")
    reconciler_starting_timeout: Seconds = Field(300, description="Seconds without progress after which STARTING fails.")
    reconciler_stopping_timeout: Seconds = Field(300, description="Seconds without progress after which STOPPING fails.")
    reconciler_archiving_timeout: Seconds = Field(1800, description="Seconds without progress after which ARCHIVING fails.")
    reconciler_deleting_timeout: Seconds = Field(300, description="Seconds without progress after which DELETING fails.")
    coordinator_lock_id: int = Field(
        12345,
        ge=-(2**63),
        lt=2**63,
        description="The number of the PostgreSQL advisory lock that the leading controller holds; unique in its database.",
    )
    coordinator_retry_interval: Seconds = Field(5, description="Seconds between two attempts to become the leader.")
    coordinator_node_id: str | None = Field(
        None,
        min_length=1,
        max_length=200,
        description="The name of this process among the controllers. Default: the host name and the process ID.",
    )
    coordinator_heartbeat: Seconds = Field(2, description="Seconds between two heartbeats of a controller.")
    coordinator_expiry: Seconds = Field(
        10,
        description="Seconds without a heartbeat until other controllers take over; at least twice coordinator_heartbeat.",
    )

    ttl_interval: Seconds = Field(60, description="Seconds between two searches for idle workspaces.")
    connection_lease: float = Field(
        30, ge=2, le=3600, description="Seconds after which a connection through a proxy that crashed no longer counts as use."
    )
    foreground_ttl: Seconds = Field(
        8 * 3600,
        description="Seconds for which a foreground command in a terminal keeps its workspace awake after its last input, "
        "output or CPU use.",
    )
    before_sleep_timeout: Seconds = Field(
        30,
        description="Seconds that a `before_sleep` command can take. After that it is killed and the workspace is stopped.",
    )
    gc: Literal["on", "off"] = Field(
        "on",
        description="Whether unneeded archives are removed. Set it to `off` while you restore a database from a backup.",
    )
    gc_interval: Seconds = Field(3600, description="Seconds between two garbage collections of archives.")
    gc_grace: Seconds = Field(7200, description="Seconds between marking an archive as an orphan and removing it.")
    gc_keep: int = Field(5, ge=1, description="How many of the latest archives of each workspace are always kept.")
    gc_keep_daily: int = Field(
        7, ge=0, le=3660, description="For how many days the last archive of each day is kept, besides the latest ones."
    )
    gc_keep_weekly: int = Field(
        4, ge=0, le=520, description="For how many weeks the last archive of each week is kept, besides the latest ones."
    )
    archive_format: int = Field(
        2,
        ge=1,
        le=2,
        description="The format of new archives. 1: one tar stream. 2: packs, of which an archive writes only what is new; "
        "controllers use it when all of them support it. Archives of both formats can always be restored.",
    )
    archive_proof_age: float = Field(
        7 * 86_400,
        ge=0,
        le=10 * 365 * 86_400,
        description="Seconds for which a pack that was read back counts as proven. An archive that takes it over reads it back "
        "again only after that. 0: always.",
    )
    archive_drill_rate: int = Field(
        4 << 20,
        ge=0,
        description="Bytes per second at which packs in the archive store are read back and checked again, before their proof "
        "is too old. 0: only packs that an operation found damaged.",
    )
    undelete_grace: Seconds = Field(7 * 86_400, description="Seconds for which a deleted workspace can be undeleted.")
    name_reserved_for: float = Field(
        86_400,
        ge=0,
        le=10 * 365 * 86_400,
        description="Seconds for which the name of a deleted or renamed workspace stays reserved for its owner, because "
        "browsers keep cookies and other data of its host name.",
    )
    events_retention: Seconds = Field(86_400, description="Seconds for which missed events can be replayed.")
    events_heartbeat: float = Field(30, gt=0, le=300, description="Seconds between two heartbeats on an event stream.")

    max_running_per_user: int = Field(2, ge=0, description="How many workspaces of one user can run at the same time.")
    max_running_global: int = Field(100, ge=0, description="How many workspaces can run at the same time in total.")
    standby_ttl: int = Field(
        300, ge=1, description="Seconds without use after which a running workspace is stopped; the default of new workspaces."
    )
    archive_ttl: int = Field(
        86_400, ge=1, description="Seconds after which a stopped workspace is archived; the default of new workspaces."
    )

    workspace_memory_mb: int = Field(2048, ge=16, description="MiB of memory that one workspace can use.")
    workspace_processes: int = Field(512, ge=8, description="How many processes and threads one workspace can have.")
    workspace_max_cpu: float | None = Field(
        None,
        gt=0,
        description="The most cores that one workspace can use; also of workspaces without a `cpu` of their own. Default: all.",
    )
    workspace_max_memory_mb: int | None = Field(
        None,
        ge=16,
        description="The most MiB of memory that a workspace or a template can ask for. Default: workspace_memory_mb.",
    )
    workspace_max_disk_mb: int | None = Field(
        None, ge=1, description="The most MiB of disk space that a workspace or a template can ask for. Default: no limit."
    )
    workspace_environment_kb: int = Field(
        32, ge=0, le=128, description="KiB of environment variables and secrets that one workspace can have in total."
    )
    workspace_stop_grace: Seconds = Field(
        10, description="Seconds that the processes of a workspace have to end when it is stopped; then they are killed."
    )
    workspace_blocked_networks: str = Field(
        ", ".join(BLOCKED),
        description="Addresses and networks that workspaces cannot reach, separated by commas. Default: private networks (RFC "
        "1918, carrier-grade NAT, link-local, unique local), where machines often trust their neighbours and clouds serve "
        "credentials. The nameservers of workspaces stay reachable on port 53.",
    )
    workspace_allowed_networks: str = Field(
        "",
        description="Exceptions from workspace_blocked_networks, such as a package index in your own network: "
        "`10.1.2.3, fd12::/64`. The machine that runs Torpor stays blocked.",
    )
    isolation: Literal["auto", "none"] = Field(
        "auto",
        description="What confines the network of workspaces on the runtimes `docker` and `podman`. `auto`: firewall rules on "
        "the engine's machine, which Torpor writes; if it cannot, it does not start. `none`: no rules. Workspaces then reach "
        "services of the engine's machine, ports that it publishes for other containers, and private networks; without "
        "`unconfined`, the installation has one user. On the runtime `kubernetes`, `auto` writes NetworkPolicies, which the "
        "cluster's network plug-in must enforce, and `none` writes none. Other runtimes ignore it.",
    )

    disk_reserve: int = Field(
        1024,
        ge=0,
        description="MiB that stay free on the disk of the homes, for database, bus and archives. With less free space no "
        "workspace is started or restored; with less than half of it, workspaces that write are paused. `0`: no such check.",
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
        # An origin has no path. Torpor compares it with a browser's Origin header to recognise its own pages.
        if value is not None and urlsplit(value).path not in ("", "/"):
            raise ValueError("must be http://HOST or https://HOST, with or without a port, and without a path")
        return value

    @field_validator("engine_url", mode="after")
    @classmethod
    def _is_on_this_machine(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith("unix:///"):
            raise ValueError("must be a socket on this machine, such as unix:///run/docker.sock (no remote engine)")
        return value

    @field_validator("workspace_image", mode="after")
    @classmethod
    def _is_an_image(cls, value: str) -> str:
        if fault := image_fault(value):
            raise ValueError(fault)
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

    @field_validator("image_allowlist", mode="after")
    @classmethod
    def _are_patterns(cls, value: str) -> str:
        return ", ".join(parse_allowlist(value))

    @field_validator(
        *("data", "templates_dir", "secret_key_file", "registry_credentials", "kubernetes_config", "kubernetes_pod_file"),
        mode="after",
    )
    @classmethod
    def _absolute(cls, value: Path | None) -> Path | None:
        return value.expanduser().absolute() if value is not None else None

    @model_validator(mode="after")
    def _knows_its_provider(self) -> "Settings":
        if self.oidc_issuer is not None and (self.oidc_client_id is None or self.oidc_client_secret is None):
            raise ValueError("oidc_issuer needs oidc_client_id and oidc_client_secret")
        return self

    @model_validator(mode="after")
    def _has_two_ports(self) -> "Settings":
        if self.metrics_port == self.port:
            raise ValueError(f"port and metrics_port are both {self.port}; choose another metrics_port")
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
        """The part of a workspace's host name after the workspace's name."""
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
    def is_network_isolated(self) -> bool:
        return self.isolation == "auto"

    @property
    def allowed_networks(self) -> tuple[str, ...]:
        return parse_networks(self.workspace_allowed_networks)

    @property
    def tuning(self) -> Tuning:
        return Tuning(
            timeouts_s={
                Operation.PROVISIONING: self.reconciler_provisioning_timeout,
                Operation.RESTORING: self.reconciler_restoring_timeout,
                Operation.ACCEPTING: self.reconciler_provisioning_timeout,
                Operation.STARTING: self.reconciler_starting_timeout,
                Operation.STOPPING: self.reconciler_stopping_timeout,
                Operation.ARCHIVING: self.reconciler_archiving_timeout,
                Operation.COPYING: self.reconciler_archiving_timeout,
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
    def most(self) -> WorkspaceSize:
        """The largest size of a workspace."""
        memory_mb = self.workspace_max_memory_mb or self.workspace_memory_mb
        return WorkspaceSize(self.workspace_max_cpu, memory_mb, self.workspace_max_disk_mb)

    @property
    def image_policy(self) -> ImagePolicy:
        return policy_of_runtime(self.runtime, parse_allowlist(self.image_allowlist))

    @property
    def uses_engine(self) -> bool:
        """Whether workspaces are containers of an engine, or pods of a cluster."""
        return self.runtime in SOCKETS or self.runtime == "kubernetes"

    @property
    def engine_socket(self) -> str:
        return self.engine_url or SOCKETS[self.runtime]

    @property
    def secret_key_path(self) -> Path:
        return self.secret_key_file or self.data / SECRET_KEY_FILE

    @property
    def environment_bytes(self) -> int:
        return self.workspace_environment_kb << 10

    @property
    def retention(self) -> Retention:
        return Retention(
            keep=self.gc_keep,
            grace=timedelta(seconds=self.gc_grace),
            undelete_grace=timedelta(seconds=self.undelete_grace),
            keep_daily=self.gc_keep_daily,
            keep_weekly=self.gc_keep_weekly,
        )

    @property
    def gc_policy(self) -> GcPolicy:
        return GcPolicy(self.retention, every=timedelta(seconds=self.gc_interval))

    @property
    def intervals(self) -> Intervals:
        return Intervals(idle_s=self.reconciler_interval, active_s=self.reconciler_active_interval)

    @property
    def ttls(self) -> Ttls:
        return Ttls(standby_s=self.standby_ttl, archive_s=self.archive_ttl)

    @property
    def running_limits(self) -> RunningLimits:
        return RunningLimits(per_user=self.max_running_per_user, overall=self.max_running_global)


def load(
    environ: Mapping[str, str], *, toml: tuple[Path, str] | None = None, overrides: Mapping[str, Any] | None = None
) -> Settings:
    """The settings from the command line, the environment and the file; Refused `bad_setting` when a value is wrong."""
    _refuse_misspelt(environ)
    given: dict[str, tuple[str, Any]] = {"data": ("the default", default_data(environ))}
    if toml is not None:
        given |= _from_toml(*toml)
    for name in Settings.model_fields:
        if environ.get(PREFIX + name.upper()):
            given[name] = (f"the environment's {PREFIX}{name.upper()}", environ[PREFIX + name.upper()])
    for name, value in (overrides or {}).items():
        if value is not None:
            given[name] = (f"--{name.replace('_', '-')}", value)
    try:
        return Settings(**{name: value for name, (_, value) in given.items()})
    except ValidationError as error:
        raise Refused("bad_setting", "\n".join(_explain(one, given) for one in error.errors())) from None


def _refuse_misspelt(environ: Mapping[str, str]) -> None:
    """Otherwise a setting with a misspelt name would be ignored without notice."""
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
    # Without the prefix, which would make all names similar.
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
            raise Refused("bad_setting", f"{PREFIX}CONFIG names {path}, which does not exist") from None
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
        raise Refused("bad_setting", f"{path} sets {', '.join(unknown)}, which is not a setting; allowed are: {allowed}")
    return {name: (f"{name} in {path}", value) for name, value in table.items()}


# Their values are never printed, not even when they are wrong.
SECRET = frozenset(name for name, field in Settings.model_fields.items() if field.annotation == SecretStr | None)


def _explain(error: Any, given: Mapping[str, tuple[str, Any]]) -> str:
    wrong = str(error["msg"]).removeprefix("Value error, ")
    if not error["loc"]:
        return f"the settings do not fit together: {wrong}"
    name = str(error["loc"][0])
    where, value = given.get(name, ("?", "?"))
    shown = "that value" if name in SECRET else repr(str(value))
    return f"{where}: {shown} is not allowed: {wrong}"
