"""What is counted, and under which name?

The names are a promise (docs/reference/metrics.md is drawn from here). What is counted is told to these by whoever does it,
around the unit of work, never between its lines.
"""

import math

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

# When a series began is nothing anybody asks for.
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
operations_total = _counter("operations_total", "Operations that ended.", "operation", "outcome")
operation_seconds = _histogram("operation_seconds", "From the first attempt of an operation to its end.", "operation")
reconcile_seconds = _histogram("reconcile_seconds", "One look: load, observe, decide, persist.")
reconcile_lag_seconds = _gauge("reconcile_lag_seconds", "How old the last look at everything is.")
observe_seconds = _histogram("observe_seconds", "One look at a provider.", "provider")
cas_conflicts_total = _counter("cas_conflicts_total", "Writes refused because somebody else had written the row.")
loop_last_turn_age_seconds = _gauge(
    "loop_last_turn_age_seconds", "How long ago each loop of this process ended a turn or made progress in one.", "loop"
)
loop_failed_turns_total = _counter("loop_failed_turns_total", "Turns of loops that ended with an error.", "loop")
loop_restarts_total = _counter("loop_restarts_total", "Restarts of loops that did not turn in time.", "loop")
is_leader = _gauge("is_leader", "1 in the process that leads.")
ttl_expirations_total = _counter("ttl_expirations_total", "Workspaces put to sleep because nobody used them.", "transition")
archive_bytes_total = _counter("archive_bytes_total", "Bytes written to archives (packed) and homes (restored).", "direction")
archive_verified_age_seconds = _gauge("archive_verified_age_seconds", "How long ago the archive proven longest ago was proven.")
archive_verified_age_seconds.set(math.nan)  # known to the leader alone
proxy_requests_total = _counter("proxy_requests_total", "Requests that came to the proxy.", "outcome")
proxy_connections = _gauge("proxy_connections", "Connections open at the proxy.")
proxy_connections_limited_total = _counter(
    "proxy_connections_limited_total",
    "Connections that met the limit of their address, or of all (total); they or an unused one were closed.",
    "limit",
)
wake_seconds = _histogram(
    "wake_seconds",
    "From the request that woke a workspace until it answers.",
)
events_published_total = _counter("events_published_total", "Changes published to the bus.")
sse_streams = _gauge("sse_streams", "Streams of events that are open.")
gc_removed_total = _counter("gc_removed_total", "Archives removed because nobody referred to them.")
home_bytes = _gauge("home_bytes", "What all homes take on their disk, as last measured; known to the leader.")
home_bytes.set(math.nan)
disk_free_bytes = _gauge("disk_free_bytes", "Free space on the disk of the homes, while `disk_reserve` is watched.")
disk_free_bytes.set(math.nan)  # where it is not watched
workspaces_paused = _gauge("workspaces_paused", "Workspaces with processes that are paused because the disk is almost full.")
log_lines_lost_total = _counter("log_lines_lost_total", "Lines of output that could not be written.")
