"""Generate the Grafana dashboard from a table of panels."""

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Panel:
    title: str
    expressions: tuple[tuple[str, str], ...]
    """(PromQL, legend)"""
    unit: str = "short"
    kind: str = "timeseries"


@dataclass(frozen=True)
class Row:
    title: str
    panels: tuple[Panel, ...]


def _rate(metric: str, by: str = "") -> str:
    return f"sum{f' by ({by})' if by else ''} (rate(torpor_{metric}[5m]))"


def _quantile(metric: str, quantile: float, by: str = "") -> str:
    labels = ", ".join(filter(None, ("le", by)))
    return f"histogram_quantile({quantile}, sum by ({labels}) (rate(torpor_{metric}_bucket[5m])))"


ROWS = (
    Row(
        "Workspaces",
        (
            Panel("Workspaces by phase", (("max by (phase) (torpor_workspaces)", "{{phase}}"),)),
            Panel("In ERROR", (('max(torpor_workspaces{phase="ERROR"})', "ERROR"),), kind="stat"),
            Panel(
                "From the wish to a workspace that answers",
                ((_quantile("wake_seconds", 0.5), "median"), (_quantile("wake_seconds", 0.95), "95 %")),
                unit="s",
            ),
            Panel("Automatic stops and archivings", ((_rate("ttl_expirations_total", "transition"), "{{transition}}"),)),
        ),
    ),
    Row(
        "Operations",
        (
            Panel(
                "Operations that ended",
                ((_rate("operations_total", "operation, outcome"), "{{operation}} {{outcome}}"),),
                "ops",
            ),
            Panel(
                "How long operations take (95 %)", ((_quantile("operation_seconds", 0.95, "operation"), "{{operation}}"),), "s"
            ),
        ),
    ),
    Row(
        "Control",
        (
            Panel("Leaders (must be 1)", (("sum(torpor_is_leader)", "leaders"),), kind="stat"),
            Panel("Age of the last full resync", (("torpor_reconcile_lag_seconds", "{{instance}}"),), "s"),
            Panel(
                "One look",
                ((_quantile("reconcile_seconds", 0.5), "median"), (_quantile("reconcile_seconds", 0.99), "99 %")),
                "s",
            ),
            Panel("Observation of a provider (95 %)", ((_quantile("observe_seconds", 0.95, "provider"), "{{provider}}"),), "s"),
            Panel("Writes refused because the row had changed", ((_rate("cas_conflicts_total"), "conflicts"),), "ops"),
            Panel("Log lines lost", ((_rate("log_lines_lost_total"), "lost"),), "ops"),
            Panel("Age of each loop's last pass", (("max by (loop) (torpor_loop_last_turn_age_seconds)", "{{loop}}"),), "s"),
            Panel("Failed passes of loops", ((_rate("loop_failed_turns_total", "loop"), "{{loop}}"),), "ops"),
            Panel("Loops restarted by the watchdog", ((_rate("loop_restarts_total", "loop"), "{{loop}}"),), "ops"),
        ),
    ),
    Row(
        "Archives",
        (
            Panel("Homes packed and restored", ((_rate("archive_bytes_total", "direction"), "{{direction}}"),), "Bps"),
            Panel("Archive proven longest ago", (("max(torpor_archive_verified_age_seconds)", "age"),), "s", "stat"),
            Panel(
                "Archives and packs collected",
                ((_rate("gc_removed_total"), "archives"), (_rate("gc_packs_removed_total"), "packs")),
                "ops",
            ),
            Panel(
                "Packs and roots checked again",
                (
                    (_rate("pack_proofs_total", "outcome"), "packs {{outcome}}"),
                    (_rate("root_proofs_total", "outcome"), "roots {{outcome}}"),
                ),
                "ops",
            ),
        ),
    ),
    Row(
        "Disk",
        (
            Panel(
                "The disk of the homes",
                (("min(torpor_disk_free_bytes)", "free"), ("max(torpor_home_bytes)", "homes")),
                "bytes",
            ),
            Panel("Workspaces paused because it is almost full", (("sum(torpor_workspaces_paused)", "paused"),), kind="stat"),
        ),
    ),
    Row(
        "Doors",
        (
            Panel("Requests at the proxy", ((_rate("proxy_requests_total", "outcome"), "{{outcome}}"),), "reqps"),
            Panel("Connections at the proxy", (("torpor_proxy_connections", "{{instance}}"),)),
            Panel("Connections over a limit", ((_rate("proxy_connections_limited_total", "limit"), "{{limit}}"),), "ops"),
            Panel("Event streams", (("torpor_sse_streams", "{{instance}}"),)),
            Panel("Events published", ((_rate("events_published_total"), "events"),), "ops"),
        ),
    ),
)


def dashboard() -> str:
    panels: list[dict[str, Any]] = []
    y = 0
    for row in ROWS:
        panels.append({"type": "row", "title": row.title, "collapsed": False, "gridPos": _place(0, y, 24, 1), "panels": []})
        y += 1
        for number, panel in enumerate(row.panels):
            panels.append(_panel(panel, _place(8 * (number % 3), y + 8 * (number // 3), 8, 8)))
        y += 8 * ((len(row.panels) + 2) // 3)
    for number, drawn in enumerate(panels, start=1):
        drawn["id"] = number
    source = {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
    return (
        json.dumps(
            {
                "title": "Torpor",
                "uid": "torpor",
                "tags": ["torpor"],
                "schemaVersion": 39,
                "editable": True,
                "refresh": "30s",
                "time": {"from": "now-6h", "to": "now"},
                "templating": {"list": [source]},
                "panels": panels,
            },
            indent=1,
        )
        + "\n"
    )


def _place(x: int, y: int, width: int, height: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": width, "h": height}


def _panel(panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${datasource}"}
    return {
        "type": panel.kind,
        "title": panel.title,
        "datasource": source,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + number), "datasource": source, "expr": expression, "legendFormat": legend}
            for number, (expression, legend) in enumerate(panel.expressions)
        ],
    }
