"""Are all promised metrics there, and does the dashboard show every one of them and no other?"""

import json
import re

from prometheus_client import generate_latest
from tools.grafana import dashboard

from torpor import metrics

PROMISED = {
    "workspaces", "operations_total", "operation_seconds", "reconcile_seconds", "reconcile_lag_seconds", "observe_seconds",
    "cas_conflicts_total", "is_leader", "ttl_expirations_total", "archive_bytes_total", "archive_verified_age_seconds",
    "proxy_requests_total", "proxy_connections", "wake_seconds", "events_published_total", "sse_streams", "gc_removed_total",
    "log_lines_lost_total", "loop_failed_turns_total", "loop_last_turn_age_seconds", "loop_restarts_total",
    "disk_free_bytes", "workspaces_paused", "home_bytes", "proxy_connections_limited_total",
    "gc_packs_removed_total", "pack_proofs_total", "root_proofs_total",
}  # fmt: skip


def test_every_promised_metric_is_exported() -> None:
    told = set(re.findall(r"^# TYPE torpor_(\w+) ", generate_latest(metrics.REGISTRY).decode(), re.MULTILINE))
    assert told == PROMISED


def test_the_dashboard_shows_every_metric_and_no_other() -> None:
    drawn = json.loads(dashboard())
    expressions = [target["expr"] for panel in drawn["panels"] for target in panel.get("targets", [])]
    shown = {name.removesuffix("_bucket") for one in expressions for name in re.findall(r"torpor_(\w+)", one)}
    assert shown == PROMISED
    places = [tuple(panel["gridPos"].values()) for panel in drawn["panels"]]
    assert len(set(places)) == len(places)
