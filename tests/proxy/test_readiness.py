"""Every workspace has a readiness, and every page says only what concerns this workspace."""

import json
from dataclasses import replace
from itertools import product

import pytest

from tests.support.builders import NOW, error, workspace
from torpor.domain.errors import Reason
from torpor.domain.hostnames import Hosts
from torpor.domain.records import DISK_LOW, WorkspaceCondition
from torpor.domain.states import Operation, Phase, Wish
from torpor.proxy import pages
from torpor.proxy.gate import Reply
from torpor.proxy.outcomes import RequestOutcome
from torpor.proxy.readiness import Readiness, readiness
from torpor.proxy.wake_progress import AT_REST, HOME_STEP, TITLE, StepState, wake_progress

HOSTS = Hosts("http://localhost:8080", "localhost")


@pytest.mark.parametrize(("phase", "operation", "wish", "is_reachable"), list(product(Phase, Operation, Wish, (True, False))))
def test_every_row_has_a_readiness_and_a_page(phase: Phase, operation: Operation, wish: Wish, is_reachable: bool) -> None:
    row = workspace(
        phase=phase,
        operation=operation,
        desired_state=wish,
        deleted_at=NOW if wish is Wish.DELETED else None,
        progress_total=100,
    )
    stands = readiness(row, is_reachable=is_reachable)
    if wish is Wish.DELETED:
        assert stands is Readiness.DELETED
    elif phase is Phase.ERROR:
        assert stands is Readiness.ERROR
    elif phase is Phase.RUNNING and is_reachable and operation is not Operation.STOPPING:
        assert stands is Readiness.READY
    else:
        assert stands is (Readiness.WAKING if wish is Wish.RUNNING else Readiness.ASLEEP)

    following = wake_progress("ada", row, stands)
    assert following.ready is (stands is Readiness.READY)
    assert following.can_wake is (stands is Readiness.ASLEEP)
    assert "ada" in following.title
    notice = pages.readiness_page(HOSTS, following, stands)
    assert notice.status == (410 if stands is Readiness.DELETED else 503)
    for as_html in (True, False):
        reply = pages.reply(notice, as_html=as_html)
        assert header(reply, "Retry-After") == ("2" if following.moving else "30")
        assert following.title in reply.body.decode()
        assert b'http-equiv="refresh"' not in reply.body, "a tab left open must never be what wakes a workspace"
    if stands is Readiness.WAKING:
        assert [step.state for step in following.steps].count(StepState.NOW) == 1


def test_an_unknown_workspace_has_a_404_page() -> None:
    assert readiness(None, is_reachable=False) is Readiness.UNKNOWN
    assert wake_progress("ada", None, Readiness.UNKNOWN).title == "There is no workspace ada"
    assert pages.readiness_page(HOSTS, wake_progress("ada", None, Readiness.UNKNOWN), Readiness.UNKNOWN).status == 404


def test_a_terminal_error_determines_the_readiness() -> None:
    row = workspace(phase=Phase.STANDBY, error=error(Reason.TIMEOUT, is_terminal=True))
    assert readiness(row, is_reachable=False) is Readiness.ERROR
    retried = workspace(phase=Phase.STANDBY, error=error(Reason.ACTION_FAILED, is_terminal=False))
    assert readiness(retried, is_reachable=False) is Readiness.WAKING


def test_every_operation_and_phase_has_words() -> None:
    assert HOME_STEP.keys() == set(Operation)
    assert AT_REST.keys() == TITLE.keys() == set(Phase)


def test_a_restore_is_followed_in_percent() -> None:
    row = workspace(phase=Phase.ARCHIVED, operation=Operation.RESTORING, progress_done=43, progress_total=100)
    following = wake_progress("ada", row, Readiness.WAKING)
    assert following.words == "Restoring (43\N{NO-BREAK SPACE}%)."
    assert [(step.words, step.state.value) for step in following.steps] == [
        ("Restoring the home", "now"),
        ("Starting the program", "next"),
        ("Opening the workspace", "next"),
    ]
    page = pages.reply(pages.readiness_page(HOSTS, following, Readiness.WAKING), as_html=True).body.decode()
    assert 'value="43"' in page
    assert f'data-after="{following.tag}"' in page
    starting = wake_progress("ada", workspace(phase=Phase.STANDBY, operation=Operation.STARTING), Readiness.WAKING)
    assert [step.state.value for step in starting.steps] == ["done", "now", "next"]
    assert starting.tag != following.tag
    assert json.loads(json.dumps(starting.body()))["after"] == starting.tag


def test_the_page_of_a_stopped_workspace_has_the_start_command() -> None:
    row = workspace(phase=Phase.STANDBY, desired_state=Wish.STANDBY)
    text = pages.reply(
        pages.readiness_page(HOSTS, wake_progress("ada", row, Readiness.ASLEEP), Readiness.ASLEEP), as_html=False
    ).body.decode()
    assert text == "ada is stopped.\nThe home is on disk. Nothing runs.\nStart it with:\n  torpor start ada\n"


def test_text_of_others_is_escaped() -> None:
    row = workspace(phase=Phase.ERROR, error=error(Reason.ACTION_FAILED, message="<script>alert(1)</script> on this page"))
    page = pages.reply(pages.readiness_page(HOSTS, wake_progress("ada", row, Readiness.ERROR), Readiness.ERROR), as_html=True)
    assert page.body.count(b"<script") == 1, "ours, and no other"
    assert b"&lt;script&gt;alert(1)" in page.body
    assert b"http://localhost:8080/workspaces/ada" in page.body, "the dashboard shows what you can do"


def test_the_page_runs_nothing_but_its_own_script() -> None:
    following = wake_progress("ada", workspace(phase=Phase.STANDBY), Readiness.WAKING)
    policy = header(
        pages.reply(pages.readiness_page(HOSTS, following, Readiness.WAKING), as_html=True), "Content-Security-Policy"
    )
    assert policy is not None
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    for part in (
        "script-src 'sha256-",
        "style-src 'sha256-",
        "connect-src 'self'",
        "frame-ancestors 'none'",
        "form-action 'none'",
    ):
        assert part in policy
    silent = header(pages.reply(pages.workspace_not_found_page("ada"), as_html=True), "Content-Security-Policy")
    assert silent is not None
    assert "script-src" not in silent


def test_above_the_limit_the_page_redirects_to_the_choice_of_workspaces() -> None:
    notice = pages.over_limit(HOSTS, "ada", "2 are running", 'http://localhost:8080/.torpor/room?workspace=ada&back=/"x')
    page = pages.reply(notice, as_html=True)
    assert (notice.status, notice.outcome) == (503, RequestOutcome.OVER_LIMIT)
    assert b'content="0; url=http://localhost:8080/.torpor/room?workspace=ada&amp;back=/&quot;x"' in page.body
    assert header(page, "Retry-After") == "30"


def test_without_disk_space_the_page_says_so_and_does_not_reload() -> None:
    notice = pages.disk_low(HOSTS, "ada", "the disk of the homes (/d) has 5 MiB free")
    assert (notice.status, notice.outcome) == (503, RequestOutcome.DISK_LOW)
    for as_html in (True, False):
        reply = pages.reply(notice, as_html=as_html)
        assert b"has 5 MiB free" in reply.body
        assert b'http-equiv="refresh"' not in reply.body
        assert header(reply, "Retry-After") == "30"


def test_a_wake_that_waits_for_disk_space_shows_it() -> None:
    low = WorkspaceCondition(True, DISK_LOW, "the disk of the homes (/d) has 5 MiB free")
    row = workspace(phase=Phase.STANDBY, desired_state=Wish.RUNNING)
    waiting = replace(row, conditions=replace(row.conditions, healthy=low))
    assert (
        "Waiting for disk space: the disk of the homes (/d) has 5 MiB free"
        in wake_progress("ada", waiting, Readiness.WAKING).words
    )


def header(reply: Reply, name: str) -> str | None:
    return next((value.decode() for found, value in reply.headers if found.decode() == name), None)
