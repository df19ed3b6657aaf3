"""Does each host lead where it should, and does each page say what is the case?"""

from itertools import product

import pytest

from torpor.domain.states import Operation, Phase
from torpor.proxy import pages
from torpor.proxy.outcomes import Outcome
from torpor.proxy.pages import Command, Notice, OnPage
from torpor.proxy.route import Asleep, Destination, ToNobody, ToPlatform, ToWorkspace, destination, may_exist

WHERE: dict[str, Destination] = {
    "localhost": ToPlatform(),
    "127.0.0.1": ToPlatform(),
    "[::1]": ToPlatform(),
    "ada.localhost": ToWorkspace("ada"),
    "api.localhost": ToWorkspace("api"),
    ".localhost": ToNobody(".localhost"),
    "a.b.localhost": ToNobody("a.b.localhost"),
    "localhost.": ToNobody("localhost."),
    "localhost.localhost": ToWorkspace("localhost"),
    "evil.example": ToNobody("evil.example"),
    "adalocalhost": ToNobody("adalocalhost"),
    "ada.localhost.evil.example": ToNobody("ada.localhost.evil.example"),
    "127.0.0.2": ToNobody("127.0.0.2"),
    "0.0.0.0": ToNobody("0.0.0.0"),
}


@pytest.mark.parametrize("host", WHERE)
def test_where_a_host_leads(host: str) -> None:
    assert destination(host) == WHERE[host]


def test_names_that_cannot_be_are_not_looked_up() -> None:
    assert may_exist("ada")
    assert not any(map(may_exist, ("api", "localhost", "a--b", "-a", "a_b", "x" * 41)))


@pytest.mark.parametrize(("phase", "operation"), list(product(Phase, Operation)))
def test_every_state_has_a_page_that_says_what_to_do(phase: Phase, operation: Operation) -> None:
    notice = pages.asleep(Asleep("ada", phase, operation, 40, None))
    assert notice.status == 503
    assert "ada" in notice.title
    assert any(isinstance(line, Command | OnPage) for line in notice.lines)
    moves = operation is not Operation.NONE or phase is Phase.RUNNING
    assert (notice.refresh_s is not None) is moves
    for as_html in (True, False):
        answer = pages.render(notice, as_html=as_html)
        assert answer.headers["Retry-After"] == ("2" if moves else "30")
        assert (b'http-equiv="refresh"' in answer.body) is (moves and as_html)


def test_a_sleeping_workspace_says_how_to_wake_it() -> None:
    text = pages.render(pages.asleep(Asleep("ada", Phase.STANDBY, Operation.NONE)), as_html=False).body.decode()
    assert text == "ada is asleep.\nIt is STANDBY; nothing is under way.\nWake it with:\n  torpor start ada\n"


def test_what_others_wrote_is_shown_as_text() -> None:
    notice = pages.asleep(Asleep("ada", Phase.ERROR, Operation.NONE, None, "<script>alert(1)</script> on this page"))
    page = pages.render(notice, as_html=True)
    assert b"<script" not in page.body
    assert b"&lt;script&gt;" in page.body
    assert "script-src" not in page.headers["Content-Security-Policy"]
    assert page.headers["Content-Security-Policy"].startswith("default-src 'none'")
    assert b"on this page" in pages.render(notice, as_html=False).body


def test_an_answer_in_bytes() -> None:
    answer = pages.render(Notice(404, "No", outcome=Outcome.UNKNOWN), as_html=False)
    assert answer.render() == (
        b"HTTP/1.1 404 Not Found\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 4\r\n"
        b"Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\nNo.\n"
    )
    assert answer.render(with_body=False).endswith(b"\r\n\r\n")
