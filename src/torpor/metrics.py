"""Define every metric.

The names are stable (docs/reference/metrics.md is generated from here). The code that does the work updates them around a unit
of work, not between its lines.
"""

import math

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

# The creation times of series would double their number, and no dashboard needs them.
disable_created_metrics()  # type: ignore[no-untyped-call]
REGISTRY = CollectorRegistry()

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 900, 1800)


def _counter(name: str, means: str, *labels: str) -> Counter:
    return Counter(name, means, labels, namespace="torpor", registry=REGISTRY)


def _gauge(name: str, means: str, *labels: str) -> Gauge:
    return Gauge(name, means, labels, namespace="torpor", registry=REGISTRY)


def _histogram(name: str, means: str, *labels: str) -> Histogram:
    return Histogram(name, means, labels, namespace="torpor", registry=REGISTRY, buckets=_SECONDS)


workspaces = _gauge("workspaces", "Workspaces in each phase, as the leader counts them.", "phase")
operations_total = _counter("operations_total", "Operations that have ended.", "operation", "outcome")
operation_seconds = _histogram("operation_seconds", "Duration of an operation, from its first attempt to its end.", "operation")
reconcile_seconds = _histogram("reconcile_seconds", "Duration of a reconcile pass: load, observe, decide, persist.")
reconcile_lag_seconds = _gauge("reconcile_lag_seconds", "Age of the last full resync.")
observe_seconds = _histogram("observe_seconds", "Duration of one observation of a provider.", "provider")
cas_conflicts_total = _counter("cas_conflicts_total", "Writes refused because another process had changed the row.")
loop_last_turn_age_seconds = _gauge(
    "loop_last_turn_age_seconds", "Time since each loop of this process ended a turn or made progress in one.", "loop"
)
loop_failed_turns_total = _counter("loop_failed_turns_total", "Turns of loops that ended with an error.", "loop")
loop_restarts_total = _counter("loop_restarts_total", "Restarts of loops that did not turn in time.", "loop")
is_leader = _gauge("is_leader", "1 in the leading controller, else 0.")
ttl_expirations_total = _counter(
    "ttl_expirations_total", "Workspaces stopped or archived because they were idle.", "transition"
)
archive_bytes_total = _counter(
    "archive_bytes_total", "Bytes written to archives (packed) and to homes (restored).", "direction"
)
archive_verified_age_seconds = _gauge(
    "archive_verified_age_seconds", "Age of the oldest verification among the archives; only in the leading controller."
)
archive_verified_age_seconds.set(math.nan)  # until this process leads
proxy_requests_total = _counter("proxy_requests_total", "Requests that the proxy received.", "outcome")
proxy_connections = _gauge("proxy_connections", "Open connections at the proxy.")
proxy_connections_limited_total = _counter(
    "proxy_connections_limited_total",
    "Connections beyond the limit of their address or of all (total); each closed itself or an unused connection.",
    "limit",
)
wake_seconds = _histogram(
    "wake_seconds",
    "Duration from the request that woke a workspace until the workspace responds.",
)
events_published_total = _counter("events_published_total", "Changes published to the bus.")
sse_streams = _gauge("sse_streams", "Open event streams.")
gc_removed_total = _counter("gc_removed_total", "Archives removed by garbage collection.")
gc_packs_removed_total = _counter("gc_packs_removed_total", "Packs removed by garbage collection.")
pack_proofs_total = _counter(
    "pack_proofs_total", "Packs in the archive store that were read back again, by outcome: `proven` or `damaged`.", "outcome"
)
root_proofs_total = _counter(
    "root_proofs_total", "Roots of archives that were read again, by outcome: `proven` or `damaged`.", "outcome"
)
home_bytes = _gauge("home_bytes", "Disk space that all homes use, as last measured; only in the leading controller.")
home_bytes.set(math.nan)
disk_free_bytes = _gauge("disk_free_bytes", "Free space on the disk of the homes, if `disk_reserve` is not 0.")
disk_free_bytes.set(math.nan)  # if it is not measured
workspaces_paused = _gauge("workspaces_paused", "Workspaces with processes that are paused because the disk is almost full.")
log_lines_lost_total = _counter("log_lines_lost_total", "Lines of output that could not be written.")
