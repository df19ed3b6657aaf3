"""Build the controller: its reconcile loop, and the duties that it runs while it leads."""

import os
import secrets
import socket
from dataclasses import dataclass
from functools import partial

import structlog

from torpor import metrics
from torpor.api import wire
from torpor.assemble import archive_directory, engines
from torpor.control.busy_watch import BusyWatch
from torpor.control.controller import Controller, Listeners
from torpor.control.coordinator import Coordinator, LeaderLockOptions
from torpor.control.events import EventPublisher
from torpor.control.gc import GarbageCollector
from torpor.control.home_sizes import HomeSizes
from torpor.control.idle_watch import IdleWatch, touch_on_running
from torpor.control.membership import HeartbeatOptions, Membership, NodeIdentity
from torpor.control.pack_drill import PackDrill
from torpor.control.reconcile_log import log_change
from torpor.control.usage_watch import UsageWatch
from torpor.control.workspace_metrics import Census
from torpor.domain.errors import Refused, Unavailable
from torpor.domain.hostnames import Hosts
from torpor.domain.planner import Step
from torpor.domain.records import Change
from torpor.domain.states import Phase
from torpor.domain.unconfined import ControllerConfinement
from torpor.ports import Activity, Archives, Feed, Runtime, UsageSeries
from torpor.service.activity import Touch, use_reader
from torpor.service.use import UseService
from torpor.settings import Settings
from torpor.store.archive_bases import ArchiveBases
from torpor.store.controller_store import ControllerStore
from torpor.store.database import Database
from torpor.store.events import Outbox
from torpor.store.gc import GcStore
from torpor.store.pack_gc import PackGcStore
from torpor.templates.catalogue import Catalogue

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ControllerServices:
    """What the controller uses besides the database."""

    activity: Activity
    feed: Feed
    touch: Touch
    usage: UsageSeries


async def coordinator(
    settings: Settings,
    url: str,
    database: Database,
    runtime: Runtime,
    archives: Archives,
    using: UseService,
    around: ControllerServices,
    confinement: ControllerConfinement,
    catalogue: Catalogue,
) -> Coordinator:
    """The coordinator, which has not joined and does not run yet."""
    store = ControllerStore(database, provider=runtime.name)
    bases = ArchiveBases(database, newest=settings.archive_format, proof_age_s=settings.archive_proof_age)
    executor = engines.effect_executor(settings, runtime, archives, catalogue, store, bases)
    touch = touch_on_running(around.touch)
    sizes = HomeSizes(store, runtime, record=around.usage.append_disk)

    def on_step(change: Change, step: Step) -> None:
        log_change(change, step)
        if change.after.phase is not change.before.phase:
            touch(change.after)
            if change.after.phase is Phase.STANDBY:
                sizes.wake.set()  # it was restored or stopped

    def controller(membership: Membership) -> Controller:
        return Controller(
            store,
            executor,
            life=membership,
            tuning=settings.tuning,
            intervals=settings.intervals,
            parallel=settings.reconciler_parallel,
            listeners=Listeners(tell=on_step, before_rest=lambda ids: using.stopped(ids, life=membership.life)),
        )

    events = EventPublisher(
        Outbox(database),
        around.feed,
        encode=partial(wire.workspace_json, hosts=Hosts(settings.base_url, settings.workspace_domain)),
        retention_s=settings.events_retention,
    )
    idle = IdleWatch(using, use_reader(around.activity), interval_s=settings.ttl_interval, lease_s=settings.connection_lease)
    packs = PackGcStore(database)
    collector = GarbageCollector(GcStore(database), packs, archives, retention=settings.retention, every_s=settings.gc_interval)
    drill = PackDrill(database, archives, proof_age_s=settings.archive_proof_age, bytes_per_s=settings.archive_drill_rate)
    made = Coordinator(
        store,
        NodeIdentity(
            # Containers can share a host name, and each can have the same process ID.
            node_id=settings.coordinator_node_id or f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(2)}",
            world=await runtime.world(),
            is_exclusive=engines.is_exclusive(runtime),
            confinement=confinement,
            accepted_world=settings.accept_runtime,
        ),
        HeartbeatOptions(settings.coordinator_heartbeat, settings.coordinator_expiry),
        LeaderLockOptions(url, settings.coordinator_lock_id, settings.coordinator_retry_interval),
        make_controller=controller,
        duties=[
            events,
            idle,
            *([collector] if settings.gc == "on" else []),
            Census(store),
            sizes,
            drill,
        ],
        on_change=events.wake.set,
    )
    metrics.reconcile_lag_seconds.set_function(lambda: made.last_look_age_s or float("nan"))
    return made


def usage_watch(runtime: Runtime, series: UsageSeries, coordinator: Coordinator) -> UsageWatch:
    return UsageWatch(runtime, series, concerns=coordinator.owns)


def busy_watch(
    settings: Settings, runtime: Runtime, activity: Activity, using: UseService, catalogue: Catalogue, coordinator: Coordinator
) -> BusyWatch:
    return BusyWatch(
        runtime,
        activity,
        lease_s=settings.connection_lease,
        foreground_ttl_s=settings.foreground_ttl,
        counts_cpu=catalogue.counts_cpu,
        concerns=coordinator.owns,
        write_down=using.seen_in_use,
    )


async def require_our_store(archives: Archives, database: Database, settings: Settings) -> None:
    """Refuse another archive store than the one with this database's homes: its disk may not be mounted, for example."""
    try:
        found = await archives.world()
    except Unavailable as out:
        # No home is archived while the store is unreachable, and its identity is checked again before that.
        log.warning("archive_store_out", why=out.message)
        return
    ours = await GcStore(database).remember_store(found)
    if found != ours:
        if settings.archive_url is None:
            directory = settings.data / archive_directory.NAME
            seen = f"{directory} is the archive store {found}. Mount the right one there, or restore it from a backup"
        else:
            seen = f"TORPOR_ARCHIVE_URL names {found}. Set it to the right one, or mount that"
        raise Refused("another_archive_store", f"the homes of this database are kept in the archive store {ours}, and {seen}")
