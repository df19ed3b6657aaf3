"""`torpor gc` sends the right request and prints the response."""

from typing import Any

from tests.cli.conftest import Torpor
from tests.support.scripted_api import ScriptedApi

ITEM = {
    "key": "ws/op",
    "workspace": "demo",
    "workspace_id": "ws",
    "size_bytes": 2048,
    "why": "superseded",
    "means": "its workspace has enough newer archives",
    "action": "remove",
    "orphan_since": None,
    "goes_at": "2026-03-01T12:00:00Z",
}
PACK = {
    "name": "op-hash",
    "workspace": "demo",
    "workspace_id": "ws",
    "size_bytes": 3072,
    "why": "unneeded",
    "means": "no archive needs it any more",
    "action": "keep",
    "orphan_since": None,
    "goes_at": None,
}
NO_DIFFERENCES: dict[str, Any] = {
    "unknown": [],
    "unknown_count": 0,
    "left_over": [],
    "left_over_count": 0,
    "missing": [],
    "missing_count": 0,
}
REPORT = {
    "started_at": "2026-03-01T12:00:01Z",
    "ended_at": "2026-03-01T12:00:02Z",
    "skipped": None,
    "kept": 7,
    "orphans": 2,
    "removed": 3,
    "freed_bytes": 4096,
    "failed": {"ws/stuck": "locked"},
    "unknown": ["ws/stranger"],
    "unknown_count": 2,
    "left_over": ["ws/left"],
    "left_over_count": 1,
    "missing": [],
    "missing_count": 0,
    "packs": {
        **NO_DIFFERENCES,
        "kept": 40,
        "orphans": 5,
        "damaged": 1,
        "removed": 6,
        "unreadable_roots": {"ws/lost": "it is gone"},
        "unknown": ["ws/packs/stranger"],
        "unknown_count": 1,
    },
}
REQUESTED = {"requested_at": "2026-03-01T12:00:00Z"}
NEVER: dict[str, Any] = {"requested_at": None, "tried_at": None, "ran_at": None, "report": None, "skipped": None}
PREVIEW = {
    "would_skip": None,
    "kept": {"pointed_at": 4, "in_error": 1},
    "would_mark": 1,
    "waiting": 2,
    "would_remove": 1,
    "would_free_bytes": 2048,
    "items": [ITEM],
    "left_out": 5,
    "unknown": [],
    "unknown_count": 0,
    "left_over": [],
    "left_over_count": 0,
    "missing": ["ws/lost"],
    "missing_count": 1,
    "packs": {
        **NO_DIFFERENCES,
        "kept": 41,
        "kept_reasons": {"needed": 40, "in_error": 1},
        "would_mark": 2,
        "waiting": 3,
        "would_remove": 1,
        "would_free_bytes": 3072,
        "items": [PACK],
        "left_out": 4,
    },
    "last": NEVER,
}


def test_a_dry_run_only_reads(torpor: Torpor, api: ScriptedApi) -> None:
    api.answer("GET /gc", PREVIEW)
    ended = torpor("gc", "--dry-run")
    assert ended.code == 0
    assert [(asked.method, asked.target) for asked in api.asked] == [("GET", "/gc")]
    for told in (
        "ws/op",
        "2.0 KiB",
        "its workspace has enough newer archives",
        "and 5 more",
        "4: its workspace is restored from it",
        "1: its workspace has an error",
        "40: an archive needs it",
        "1 archive is in the database but not in the store:",
        "ws/lost",
        "op-hash",
        "no archive needs it any more",
        "after the operation in progress",
        "and 4 more",
        "1 (3.0 KiB)",
    ):
        assert told in ended.text
    assert torpor("gc", "--dry-run", "--json").json == PREVIEW


def test_a_collection_is_waited_for(torpor: Torpor, api: ScriptedApi) -> None:
    before = {**REPORT, "started_at": "2026-03-01T11:00:00Z", "removed": 99}
    api.answer("POST /gc", REQUESTED, status=202)
    api.answer("GET /gc/report", NEVER, {**NEVER, "report": before}, {**NEVER, "report": REPORT})
    ended = torpor("gc")
    assert ended.code == 0
    for told in (
        "4.0 KiB",
        "1 archive is in the store, left behind by an operation",
        "ws/left",
        "ws/stuck could not be removed: locked",
        "2 archives are in the store",
        "and 1 more",
        "No archive or pack of the workspace of ws/lost is removed: it is gone",
        "1 pack is in the store but not in the database",
        "ws/packs/stranger",
    ):
        assert told in ended.text
    assert "99" not in ended.text
    assert "removing archives that are no longer needed (waiting at most 600 s)" in ended.said
    assert torpor("gc", "--json").json == REPORT


def test_a_skipped_collection_says_why(torpor: Torpor, api: ScriptedApi) -> None:
    api.answer("POST /gc", REQUESTED, status=202)
    before = {**REPORT, "started_at": "2026-03-01T11:00:00Z"}
    api.answer("GET /gc/report", {**NEVER, "report": before, "skipped": {**REPORT, "skipped": "the store is out"}})
    ended = torpor("gc")
    assert ended.code == 1
    assert "the collection did not finish: the store is out" in ended.said


def test_waiting_ends_after_the_timeout(torpor: Torpor, api: ScriptedApi) -> None:
    api.answer("POST /gc", REQUESTED, status=202)
    api.answer("GET /gc/report", NEVER)
    ended = torpor("gc", "--timeout", "0.1")
    assert ended.code == 5
    assert "no collection finished within 0.1 s" in ended.said


def test_a_dry_run_reports_that_a_collection_would_be_skipped(torpor: Torpor, api: ScriptedApi) -> None:
    api.answer("GET /gc", {**PREVIEW, "would_skip": "5 of 9 archives are missing in the store"})
    assert "would change nothing now: 5 of 9 archives are missing" in torpor("gc", "--dry-run").text


def test_a_user_who_is_not_administrator_is_refused(torpor: Torpor, api: ScriptedApi) -> None:
    api.refuse("GET /gc", 403, "forbidden", "only an administrator may collect archives")
    ended = torpor("gc", "--dry-run")
    assert ended.code == 1
    assert "only an administrator may collect archives (ask an administrator of this installation)" in ended.said
