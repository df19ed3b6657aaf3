"""Each command sends the right request and prints the response."""

import json
import os
import socket
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.cli.conftest import Torpor
from tests.cli.records import AT, condition, error, event, explanation, workspace
from tests.support.scripted_api import TOKEN, ScriptedApi, ScriptedResponse, stream
from torpor.cli import event_stream, wait
from torpor.cli.client import ApiClient
from torpor.cli.exit_codes import ExitCode
from torpor.cli.main import wants_json

LOOK = f"GET /workspaces/{workspace()['id']}"
EVENTS = f"{LOOK}/events"


def test_create_sends_the_given_options(torpor: Torpor, api: ScriptedApi) -> None:
    api.answer("POST /workspaces", workspace(phase="PENDING"), status=201)
    ended = torpor("create", "demo", "--template", "command", "--json", "--", "python", "--json", "-m", "x")
    assert ended.code == 0
    assert ended.json == workspace(phase="PENDING")
    assert api.asked[0].body == {"name": "demo", "template": "command", "command": ["python", "--json", "-m", "x"]}
    assert api.asked[0].token == TOKEN


def test_create_sends_only_the_given_options(torpor: Torpor, api: ScriptedApi) -> None:
    api.answer("POST /workspaces", workspace(phase="PENDING"), status=201)
    assert torpor("create", "demo").text.startswith("demo: Pending; requested state: Running (")
    assert api.asked[0].body == {"name": "demo"}


@pytest.mark.parametrize(("verb", "wish"), [("start", "RUNNING"), ("stop", "STANDBY"), ("archive", "ARCHIVED")])
def test_a_requested_state_is_sent_as_a_patch(torpor: Torpor, api: ScriptedApi, verb: str, wish: str) -> None:
    api.answer("PATCH /workspaces/demo", workspace(desired_state=wish))
    assert torpor(verb, "demo").code == 0
    assert api.asked[0].body == {"desired_state": wish}


def test_delete_and_purge(torpor: Torpor, api: ScriptedApi) -> None:
    api.answer("DELETE /workspaces/demo", workspace(desired_state="DELETED"), status=202)
    assert torpor("delete", "demo").code == 0
    assert torpor("delete", "demo", "--purge").code == 0
    assert [asked.target for asked in api.asked] == ["/workspaces/demo?purge=false", "/workspaces/demo?purge=true"]


def test_undelete_and_recover(torpor: Torpor, api: ScriptedApi) -> None:
    api.answer("POST /workspaces/demo/undelete", workspace(desired_state="ARCHIVED"))
    api.answer("POST /workspaces/demo/recover", workspace(), status=202)
    assert torpor("undelete", "demo").code == 0
    assert torpor("recover", "demo").code == 0
    assert torpor("recover", "demo", "--archive-key", "k").code == 0
    assert torpor("recover", "demo", "--empty").code == 0
    assert torpor("recover", "demo", "--accept").code == 0
    assert [asked.body for asked in api.asked] == [None, {}, {"archive_key": "k"}, {"empty": True}, {"accept": True}]
    assert torpor("recover", "demo", "--empty", "--archive-key", "k").code == 2
    assert torpor("recover", "demo", "--empty", "--accept").code == 2


def test_the_list_follows_every_page(torpor: Torpor, api: ScriptedApi) -> None:
    api.answer(
        "GET /workspaces",
        {"items": [workspace(name="a")], "next_cursor": "n=1&x"},
        {"items": [workspace(name="b")], "next_cursor": None},
    )
    assert torpor("list", "--json", "--phase", "running").json == {"items": [workspace(name="a"), workspace(name="b")]}
    assert [asked.target for asked in api.asked] == [
        "/workspaces?limit=200&phase=RUNNING",
        "/workspaces?limit=200&cursor=n%3D1%26x&phase=RUNNING",
    ]


def test_piped_output_is_neither_cut_nor_coloured(torpor: Torpor, api: ScriptedApi) -> None:
    api.answer("GET /workspaces", {"items": [workspace(url="http://" + "x" * 300)], "next_cursor": None})
    ended = torpor("list")
    assert len(ended.text.splitlines()) == 2
    assert "x" * 300 in ended.text
    assert "\x1b" not in ended.text


@pytest.mark.parametrize(
    ("command", "path", "answer", "part"),
    [
        ("show", "", workspace(), "storage.volume_ready"),
        ("explain", "/explain", explanation(), "torpor recover demo"),
        ("history", "/operations", {"items": []}, "no operations yet"),
        ("archives", "/archives", {"items": []}, "no archives"),
    ],
)
def test_show_explain_history_and_archives_print_text_and_json(
    torpor: Torpor, api: ScriptedApi, command: str, path: str, answer: object, part: str
) -> None:
    api.answer(f"GET /workspaces/demo{path}", answer)
    assert part in torpor(command, "demo").text
    assert torpor(command, "demo", "--json").json == answer


def test_templates(torpor: Torpor, api: ScriptedApi) -> None:
    items = [{"name": "command", "title": "Your own", "description": "Any program.", "takes_command": True, "cpu_weight": 40}]
    api.answer("GET /templates", {"items": items})
    assert "-- CMD..." in torpor("templates").text
    assert "CPU WEIGHT" in torpor("templates").text
    assert " 40" in torpor("templates").text
    assert torpor("templates", "--json").json == {"items": items}


def test_logs_are_escaped_unless_raw_is_given(torpor: Torpor, api: ScriptedApi) -> None:
    written = b"one\n\xfftwo \x1b]0;owned\x07 \xc2\x9b2J"
    api.answer("GET /workspaces/demo/logs", ScriptedResponse(200, written, "text/plain"))
    assert torpor("logs", "demo", "--tail", "7").out == rb"one" b"\n" rb"\xfftwo \x1b]0;owned\x07 \x9b2J"
    assert api.asked[0].target == "/workspaces/demo/logs?tail=7"
    assert torpor("logs", "demo", "--raw").out == written
    assert torpor("logs", "demo", "--json").json == {"items": ["one", "\ufffdtwo \x1b]0;owned\x07 \x9b2J"]}
    assert b"\xc2\x9b" not in torpor("logs", "demo", "--json").out
    assert torpor("logs", "demo", "--raw", "--json").code == ExitCode.USAGE


HOSTILE = "\x1b[2J\x9b31m\x07\u202e"


def test_text_of_others_does_not_control_the_terminal(torpor: Torpor, api: ScriptedApi) -> None:
    """Texts of others are escaped in results and errors, and do not look like our own lines."""
    lease = {"id": "1", "reason": f"{HOSTILE}\nroot", "created_by": "eve", "created_at": AT, "expires_at": AT}
    api.answer("GET /workspaces/demo/leases", {"items": [lease]})
    api.answer("POST /workspaces/demo/leases", lease)
    api.answer("GET /workspaces/demo", workspace(error=error(message=HOSTILE)))
    api.answer("GET /workspaces/demo/explain", explanation(summary=HOSTILE))
    api.refuse("GET /workspaces/other", 409, "conflict", HOSTILE)
    for words in (
        ["hold", "demo"],
        ["hold", "demo", "--for", "1h", "--reason", "x"],
        ["hold", "demo", "--json"],
        ["show", "demo"],
        ["explain", "demo"],
        ["explain", "demo", "--json"],
        ["show", "other"],
        ["show", "other", "--json"],
    ):
        ended = torpor(*words)
        shown = (ended.out + ended.err).decode()
        assert not set(HOSTILE) & set(shown) - set("[2J31m"), (words, shown)
        assert "1b[2J" in shown, words
    assert "\\nroot" in torpor("hold", "demo").text
    assert len(torpor("hold", "demo", "--for", "1h", "--reason", "x").text.splitlines()) == 1


def test_open_prints_the_address_and_opens_it(
    torpor: Torpor, api: ScriptedApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = tmp_path / "opened"
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {opened}\n')
    browser.chmod(0o755)
    monkeypatch.setattr("webbrowser._tryorder", None)
    monkeypatch.setenv("BROWSER", f"{browser} %s")
    api.answer("GET /workspaces/demo", workspace())
    assert torpor("open", "demo", "--print").text == "http://demo.localhost:8080/\n"
    assert not opened.exists()
    assert torpor("open", "demo").text == "http://demo.localhost:8080/\n"
    assert opened.read_text() == "http://demo.localhost:8080/\n"


def test_open_names_the_host_of_a_port(torpor: Torpor, api: ScriptedApi) -> None:
    api.answer("GET /workspaces/demo", workspace())
    assert torpor("open", "demo", "--port", "3000", "--print").text == "http://3000--demo.localhost:8080/\n"
    assert torpor("open", "demo", "--port", "3000", "--json").json == {"url": "http://3000--demo.localhost:8080/"}
    assert torpor("open", "demo", "--port", "0").code == 2


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there is always a display")
def test_without_a_display_open_only_prints(
    torpor: Torpor, api: ScriptedApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    opened = tmp_path / "opened"
    browser = tmp_path / "www-browser"
    browser.write_text(f"#!/bin/sh\ntouch {opened}\n")
    browser.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr("webbrowser._tryorder", None)
    api.answer("GET /workspaces/demo", workspace())
    ended = torpor("open", "demo")
    assert (ended.code, ended.text) == (0, "http://demo.localhost:8080/\n")
    assert "open the address above" in ended.said
    assert not opened.exists()


def test_a_creation_without_a_response_is_repeated_with_its_key(torpor: Torpor, monkeypatch: pytest.MonkeyPatch) -> None:
    body = json.dumps(workspace(phase="PENDING")).encode()
    answers = [b"", b"HTTP/1.1 201 Created\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)]
    asked: list[bytes] = []

    def serve() -> None:
        for answer in answers:
            connection, _ = server.accept()
            with connection:
                heard = b""
                while not heard.endswith(b"}"):
                    heard += connection.recv(65536)
                asked.append(heard)
                connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as server:
        serving = threading.Thread(target=serve)
        serving.start()
        monkeypatch.setenv("TORPOR_URL", f"http://127.0.0.1:{server.getsockname()[1]}")
        ended = torpor("create", "demo")
        serving.join()
    assert ended.code == 0, ended.said
    keys = [line for heard in asked for line in heard.splitlines() if line.startswith(b"Idempotency-Key: ")]
    assert len(keys) == 2
    assert len(set(keys)) == 1


def test_a_name_cannot_change_the_request_path(torpor: Torpor, api: ScriptedApi) -> None:
    api.refuse("GET /workspaces/..%2Fme%3Fx", 404, "not_found", "there is no workspace '../me?x'")
    assert torpor("show", "../me?x").code == 1
    assert api.asked[0].target == "/workspaces/..%2Fme%3Fx"
    assert torpor("show", "").code == 2
    assert torpor("show", "..").code == 2
    assert len(api.asked) == 1


# ── refusals ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_refusal_is_one_line_with_a_hint(torpor: Torpor, api: ScriptedApi) -> None:
    problem = api.refuse("GET /workspaces/demo", 404, "not_found", "there is no workspace 'demo'")
    ended = torpor("show", "demo")
    assert (ended.code, ended.text) == (1, "")
    assert ended.said == "torpor: there is no workspace 'demo' (`torpor list` shows your workspaces)\n"
    with_json = torpor("show", "demo", "--json")
    assert (with_json.code, with_json.json) == (1, problem)
    assert with_json.said == ended.said


@pytest.mark.parametrize(
    ("kind", "hint"),
    [
        ("user", "torpor users list"),
        ("token", "torpor tokens list"),
        ("session", "torpor sessions list"),
        ("lease", "torpor hold demo"),
        ("share", "torpor shares demo"),
        ("latch", "torpor doctor"),
    ],
)
def test_not_found_hints_at_the_command_that_lists_the_items(torpor: Torpor, api: ScriptedApi, kind: str, hint: str) -> None:
    api.refuse("GET /workspaces/demo", 404, "not_found", "there is none", kind=kind)
    assert f"`{hint}`" in torpor("show", "demo").said


def test_recovering_a_lost_home_lists_the_options(torpor: Torpor, api: ScriptedApi) -> None:
    api.refuse("POST /workspaces/demo/recover", 409, "say_which_way", "the home is lost", archive_keys=["k1", "k2"])
    ended = torpor("recover", "demo")
    assert ended.code == 1
    for way in ("--archive-key k1`", "--archive-key k2`", "`torpor recover demo --empty`"):
        assert way in ended.said


@pytest.mark.parametrize("status", [400, 401, 403, 409, 422, 429, 500, 503])
def test_every_refusal_exits_with_1(torpor: Torpor, api: ScriptedApi, status: int) -> None:
    api.refuse("GET /workspaces", status, "some_code", "no")
    ended = torpor("list")
    assert ended.code == 1
    assert ended.said.startswith("torpor: no")
    assert ended.said.count("\n") == 1


@pytest.mark.parametrize(
    "answer",
    [ScriptedResponse(200, b"<html>", "text/html"), ScriptedResponse(502, b"<html>", "text/html"), ScriptedResponse(200, [])],
)
def test_an_invalid_response_is_reported(torpor: Torpor, api: ScriptedApi, answer: ScriptedResponse) -> None:
    api.answer("GET /workspaces/demo", answer)
    ended = torpor("show", "demo", "--json")
    assert ended.code == 1
    assert f"check that {api.url} is a Torpor server" in ended.said
    assert ended.json["code"] == "not_torpor"


# ── waiting ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_waiting_ends_when_the_requested_state_changes(torpor: Torpor, api: ScriptedApi) -> None:
    api.answer("PATCH /workspaces/demo", workspace(phase="STANDBY"))
    api.answer(EVENTS, stream(event(1, phase="STANDBY", desired_state="ARCHIVED", wish_version=4), stays_open=True))
    ended = torpor("start", "demo", "--wait")
    assert ended.code == 4
    assert "the requested state of demo changed to Archived while this command waited for Running" in ended.said


def test_waiting_ends_after_the_timeout(torpor: Torpor, api: ScriptedApi) -> None:
    api.answer("PATCH /workspaces/demo", workspace(phase="STANDBY"))
    api.answer(EVENTS, stream(event(1, phase="STANDBY", operation="STARTING"), stays_open=True))
    ended = torpor("start", "demo", "--wait", "--timeout", "0.3")
    assert ended.code == 5
    assert "demo was not running after 0.3 s; its status is Starting (the request stays active" in ended.said
    assert [asked.method for asked in api.asked] == ["PATCH", "GET"], "one stream and no polling"


def test_an_outage_is_shown_while_waiting_and_at_the_timeout(torpor: Torpor, api: ScriptedApi) -> None:
    out = {"policy.healthy": condition("True", "ArchiveStoreOut", "the archive store cannot be reached: no route")}
    api.answer("PATCH /workspaces/demo", workspace(phase="ARCHIVED"))
    api.answer(EVENTS, stream(event(1, phase="ARCHIVED", operation="RESTORING", conditions=out), stays_open=True))
    ended = torpor("start", "demo", "--wait", "--timeout", "0.3")
    status = "Restoring (the archive store cannot be reached: no route; this is retried)"
    assert ended.code == 5
    assert f"demo: {status}" in ended.said
    assert f"demo was not running after 0.3 s; its status is {status}" in ended.said


def test_waiting_for_a_deletion_ends_when_the_workspace_is_not_found(torpor: Torpor, api: ScriptedApi) -> None:
    api.answer("DELETE /workspaces/demo", workspace(desired_state="DELETED", wish_version=4), status=202)
    api.refuse(EVENTS, 404, "not_found", "gone")
    ended = torpor("delete", "demo", "--purge", "--wait")
    assert (ended.code, ended.text) == (0, "demo is deleted\n")


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "FIRST_PAUSE_S", 0.01)


@pytest.mark.usefixtures("short_pauses")
def test_waiting_continues_after_a_lost_connection(torpor: Torpor, api: ScriptedApi) -> None:
    """After the gap the workspace is read once, then the events continue where they were."""
    starting = {"phase": "STANDBY", "operation": "STARTING"}
    api.answer("PATCH /workspaces/demo", workspace(phase="STANDBY"))
    cut = stream(event(7, **starting), tail=b'id: 8\nevent: state_changed\ndata: {"id": 8, "ev')
    api.answer(EVENTS, cut, stream(event(9), stays_open=True))
    api.answer(LOOK, workspace(**starting, progress=80))
    ended = torpor("start", "demo", "--wait")
    assert ended.code == 0
    assert ended.said.splitlines() == ["demo: Stopped", "demo: Starting", "demo: Starting 80 %", "demo: Running"]
    assert [f"{asked.method} {asked.target}" for asked in api.asked[1:]] == [EVENTS, LOOK, f"{EVENTS}?last_event_id=7"]


@pytest.mark.usefixtures("short_pauses")
def test_a_state_reached_during_a_disconnect_is_found_by_a_read(torpor: Torpor, api: ScriptedApi) -> None:
    api.answer("PATCH /workspaces/demo", workspace(phase="STANDBY"))
    api.answer(EVENTS, ScriptedResponse(502, b"Bad Gateway", "text/plain"))
    api.answer(LOOK, workspace())
    assert torpor("start", "demo", "--wait").code == 0
    assert len(api.asked) == 3


@pytest.mark.usefixtures("short_pauses")
def test_a_server_that_does_not_come_back_ends_the_wait_within_the_timeout(torpor: Torpor, api: ScriptedApi) -> None:
    api.answer("PATCH /workspaces/demo", workspace(phase="STANDBY"))
    api.answer(
        EVENTS, stream(event(7, phase="STANDBY", operation="STARTING")), ScriptedResponse(502, b"Bad Gateway", "text/plain")
    )
    api.refuse(LOOK, 503, "unavailable", "the database cannot be reached")
    began = time.monotonic()
    ended = torpor("start", "demo", "--wait", "--timeout", "1")
    assert ended.code == 5
    assert time.monotonic() - began < 10
    assert "its status is Starting" in ended.said


@pytest.mark.usefixtures("short_pauses")
def test_a_server_that_does_not_come_back_ends_the_wait_without_a_timeout(
    torpor: Torpor, api: ScriptedApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wait, "UNREACHABLE_FOR_S", 0.2)
    api.answer("PATCH /workspaces/demo", workspace(phase="STANDBY"))
    api.answer(EVENTS, ScriptedResponse(502, b"Bad Gateway", "text/plain"))
    api.refuse(LOOK, 503, "unavailable", "the database cannot be reached")
    ended = torpor("start", "demo", "--wait")
    assert (ended.code, "the database cannot be reached" in ended.said) == (1, True)


@pytest.mark.usefixtures("short_pauses")
def test_a_server_that_restarts_after_a_quiet_time_does_not_end_the_wait(api: ScriptedApi) -> None:
    """Only heartbeats come for five minutes, then the connection is lost: the wait does not end at the first failed read."""
    api.answer(EVENTS, stream(event(7, "heartbeat")))
    unavailable = {"code": "unavailable", "detail": "the database cannot be reached", "status": 503}
    api.answer(LOOK, ScriptedResponse(503, unavailable, "application/problem+json"), workspace())
    before = workspace(phase="STANDBY")

    def clock() -> float:
        return 300.0 if api.asked else 0.0

    with ApiClient(api.url, TOKEN) as client:
        reached = wait.wait_for(client, before, wait.pending_wish(before), show=lambda _: None, timeout_s=None, clock=clock)
    assert reached is not None
    assert reached["phase"] == "RUNNING"


def test_exec_in_a_stopped_workspace_is_refused_with_a_hint(torpor: Torpor, api: ScriptedApi) -> None:
    api.refuse("GET /workspaces/demo/exec", 409, "not_running", "demo is not running")
    ended = torpor("exec", "demo", "--no-wake", "--no-stdin", "--", "true")
    assert (ended.code, ended.said) == (1, "torpor: demo is not running (`torpor start demo --wait` starts it)\n")


# ── which Torpor ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_missing_credentials_are_reported_with_the_folder(torpor: Torpor, data: Path) -> None:
    (data / "credentials.json").unlink()
    ended = torpor("list", "--json")
    assert ended.code == 6
    advice = (
        "start it with `torpor up`, or sign in to a server with `torpor login URL`,"
        " or set TORPOR_DATA, or TORPOR_URL and TORPOR_TOKEN"
    )
    assert ended.said == f"torpor: torpor is not set up in {data} ({advice})\n"
    assert ended.json["code"] == "not_set_up"


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"url": "http://localhost"}'])
def test_broken_credentials(torpor: Torpor, data: Path, content: str) -> None:
    (data / "credentials.json").write_text(content)
    ended = torpor("list")
    assert ended.code == 6
    assert "credentials.json does not contain" in ended.said


def test_the_environment_gives_url_and_token(
    torpor: Torpor, api: ScriptedApi, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.answer("GET /workspaces", {"items": [], "next_cursor": None})
    (data / "credentials.json").unlink()
    monkeypatch.setenv("TORPOR_URL", api.url + "/")
    monkeypatch.setenv("TORPOR_TOKEN", "another")
    assert torpor("list").code == 0
    assert api.asked[0].token == "another"


def test_a_wrong_setting_in_the_environment_is_refused_too(torpor: Torpor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORPOR_PORT", "many")
    assert torpor("list").code == 2
    monkeypatch.delenv("TORPOR_PORT")
    monkeypatch.setenv("TORPOR_DTAA", "/elsewhere")
    for command in ("list", "doctor", "down", "up"):
        ended = torpor(command)
        assert (ended.code, ended.out) == (2, b"")
        assert "TORPOR_DTAA is not a setting; did you mean TORPOR_DATA?" in ended.said
    monkeypatch.delenv("TORPOR_DTAA")
    monkeypatch.setenv("TORPOR_CONFIG", "/no/such/file")
    assert torpor("list").code == 2


@pytest.mark.parametrize("url", ["localhost:8080", "ftp://x", "http://", "http://x:port"])
def test_an_invalid_url_is_refused(torpor: Torpor, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORPOR_URL", url)
    assert torpor("list").code == 2


def test_an_unreachable_server_is_reported(torpor: Torpor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORPOR_URL", "http://127.0.0.1:1")
    ended = torpor("list", "--json")
    assert ended.code == 6
    assert ended.said == "torpor: no server responds at http://127.0.0.1:1 (start it with `torpor up`, or check the address)\n"
    assert ended.json["code"] == "unreachable"


@pytest.mark.parametrize("command", ["list", "show demo", "up", "down", "doctor", "migrate", "templates"])
def test_a_broken_torpor_toml_is_refused_everywhere(torpor: Torpor, tmp_path: Path, command: str) -> None:
    (tmp_path / "torpor.toml").write_text("port = 'many'\nreconciler_parallel = 0\n")
    ended = torpor(*command.split())
    assert ended.code == 2
    assert "port in " in ended.said
    assert "'many' is not allowed" in ended.said
    assert "reconciler_parallel" in ended.said
    assert ended.said.count("\n") == 1


# ── usage ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "argv", [["nosuch"], ["show"], ["list", "--nosuch"], ["exec", "demo"], ["logs", "demo", "--tail", "0"]]
)
def test_wrong_usage_is_one_line_too(torpor: Torpor, argv: list[str]) -> None:
    ended = torpor(*argv)
    assert ended.code == 2
    assert ended.said.startswith("torpor: ")
    assert ended.said.count("\n") == 1


def test_without_arguments_the_help_is_shown(torpor: Torpor) -> None:
    ended = torpor()
    assert ended.code == 0
    assert "undelete" in ended.text


def test_migrate_needs_a_database(torpor: Torpor) -> None:
    ended = torpor("migrate", "--json")
    assert ended.code == 2
    assert "TORPOR_DATABASE_URL" in ended.said
    assert ended.json["code"] == "bad_setting"


def test_migrate_creates_the_first_administrator(
    torpor: Torpor, empty_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORPOR_DATABASE_URL", empty_database_url)
    ended = torpor("migrate", "--admin", "eve", "--json")
    assert ended.code == 0
    assert ended.json["admin"]["username"] == "eve"
    assert len(ended.json["admin"]["password"]) >= 16
    again = torpor("migrate", "--admin", "eve").text.splitlines()
    assert again[0] == "the schema is up to date"
    assert again[1].startswith("created administrator eve with the one-time password ")
    other = torpor("migrate", "--admin", "ada", "--json")
    assert (other.code, other.json["code"]) == (1, "admin_exists")
    tolerated = torpor("migrate", "--admin", "ada", "--if-none", "--json")
    assert (tolerated.code, tolerated.json["admin"]) == (0, None)
    assert torpor("migrate", "--admin", "ada", "--if-none").text.splitlines()[1] == "there is already an administrator"


def test_up_in_json_needs_detach(torpor: Torpor) -> None:
    assert torpor("up", "--json").code == 2


def test_down_without_up(torpor: Torpor, data: Path) -> None:
    (data / "torpor.pid").write_text("1\n")
    ended = torpor("down")
    assert ended.code == 1
    assert "is not running in" in ended.said


def test_json_before_the_separator_is_an_option() -> None:
    assert wants_json(["list", "--json"])
    assert not wants_json(["exec", "demo", "--", "x", "--json"])
    assert not wants_json(["list"])


def test_an_unexpected_error_is_one_line_without_traceback(torpor: Torpor, api: ScriptedApi) -> None:
    api.answer("GET /workspaces/demo", {"created_at": AT})
    ended = torpor("show", "demo")
    assert ended.code == 1
    assert ended.said.startswith("torpor: unexpected error: KeyError")
    assert ended.said.count("\n") == 1


def test_a_workspace_is_created_with_an_image(torpor: Torpor, api: ScriptedApi) -> None:
    api.answer("POST /workspaces", workspace())
    assert torpor("create", "demo", "--image", "python:3", "--cpu", "1", "--", "python3", "-m", "http.server").code == 0
    assert api.asked[0].body == {
        "name": "demo",
        "image": "python:3",
        "command": ["python3", "-m", "http.server"],
        "size": {"cpu": 1.0},
    }
    api.answer("GET /workspaces/demo", workspace(image="python:3"))
    assert "python:3" in torpor("show", "demo").text
    api.answer("GET /workspaces/demo", workspace())
    assert "image" not in torpor("show", "demo").text


def test_a_workspace_is_created_with_a_size(torpor: Torpor, api: ScriptedApi) -> None:
    api.answer("POST /workspaces", workspace())
    assert torpor("create", "demo", "--cpu", "0.5", "--memory", "1.5G", "--disk", "20g").code == 0
    assert api.asked[0].body == {"name": "demo", "size": {"cpu": 0.5, "memory_mb": 1536, "disk_mb": 20_480}}
    ended = torpor("create", "demo", "--memory", "4")
    assert ended.code == ExitCode.USAGE
    assert "--memory '4' is not an amount with its unit" in ended.said
    api.answer("GET /workspaces/demo", workspace(size={"cpu": 0.5, "memory_mb": 1536, "disk_mb": None}))
    assert "0.5 cores, memory 1.5 GiB" in torpor("show", "demo").text
