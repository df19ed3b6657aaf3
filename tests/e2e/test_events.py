"""A client follows the events through the proxy, misses none after a disconnect, and does not delay a stop."""

import http.client
import json
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.product import TORPOR, Product, product

pytestmark = [pytest.mark.e2e, pytest.mark.same_everywhere]

PATIENCE_S = 60
Event = dict[str, Any]


class Followed:
    """`GET /api/v1/events`, as a program requests it."""

    def __init__(self, here: Product, since: int | None = None) -> None:
        token = json.loads((here.data / "credentials.json").read_text(encoding="utf-8"))["token"]
        self._connection = http.client.HTTPConnection("127.0.0.1", here.port, timeout=PATIENCE_S)
        headers = {"Host": f"localhost:{here.port}", "Authorization": f"Bearer {token}"}
        self._connection.request(
            "GET", "/api/v1/events", headers=headers | ({} if since is None else {"Last-Event-ID": str(since)})
        )
        self._socket = self._connection.sock
        self._response = self._connection.getresponse()
        if (self._response.status, self._response.headers.get_content_type()) != (200, "text/event-stream"):
            refused = self._response.read()
            self._connection.close()
            raise AssertionError(f"{self._response.status}: {refused!r}\n{here.log()}")
        self.seen: list[Event] = []
        """All events without heartbeats."""

    def lines(self) -> Iterator[Event]:
        for line in self._response:
            if line.startswith(b"data: "):
                event: Event = json.loads(line[6:])
                if event["event"] != "heartbeat":
                    self.seen.append(event)
                yield event

    def until(self, condition: Callable[[Event], bool]) -> Event:
        for event in self.lines():
            if condition(event):
                return event
        raise AssertionError(f"the stream ended after {self.seen[-1:]}")

    def rest(self) -> None:
        """Read to the end, which must be complete: a stream that is cut off raises IncompleteRead."""
        for _ in self.lines():
            pass
        self._connection.close()

    def cut(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._connection.close()
        self._response.close()


def stands(phase: str) -> Callable[[Event], bool]:
    return lambda event: (
        event["workspace"] is not None and event["workspace"]["phase"] == phase and event["workspace"]["operation"] == "NONE"
    )


def test_torpor_events_follows_a_running_product(tmp_path: Path) -> None:
    with product(tmp_path) as here:
        witness = Followed(here)
        stream = Followed(here)
        assert next(stream.lines())["event"] == "heartbeat", "said at once"
        here.ok("create", "demo")
        stream.until(stands("RUNNING"))
        operations = [event["workspace"]["operation"] for event in stream.seen]
        assert {event["event"] for event in stream.seen} == {"state_changed"}
        assert [one for one in dict.fromkeys(operations) if one != "NONE"] == ["PROVISIONING", "STARTING"]
        assert {event["workspace"]["name"] for event in stream.seen} == {"demo"}

        # Disconnected in the middle of the next change, and connected again afterwards.
        here.ok("stop", "demo")
        last = stream.until(lambda event: event["workspace"] is not None and event["workspace"]["desired_state"] == "STANDBY")
        stream.cut()
        here.until("demo", lambda seen: seen["phase"] == "STANDBY" and seen["operation"] == "NONE")
        again = Followed(here, since=last["id"])
        again.until(stands("STANDBY"))
        witness.until(stands("RUNNING"))
        witness.until(stands("STANDBY"))
        assert [event["id"] for event in stream.seen + again.seen] == [event["id"] for event in witness.seen]
        assert stream.seen + again.seen == witness.seen
        assert len(again.seen) >= 1

        command = subprocess.Popen(
            [TORPOR, "events", "demo"],
            env=here.env() | {"TZ": "UTC"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert command.stdout
            assert command.stdout.readline().endswith("  demo: Stopped\n")
            here.ok("start", "demo")
            while not (line := command.stdout.readline()).endswith("  demo: Running\n"):
                assert "  demo: " in line

            # With all streams open: none delays the stop, and each ends properly.
            here.ok("down")
            assert here._ended() == 0
            witness.rest()
            again.rest()
            command.send_signal(signal.SIGINT)
            _, said = command.communicate(timeout=PATIENCE_S)
        finally:
            if command.returncode is None:
                command.kill()
                command.wait()
        assert command.returncode == 130, said
        assert "Traceback" not in said
        log = (tmp_path / "up.log").read_text(encoding="utf-8")
        assert "Traceback" not in log
        assert "graceful shutdown exceeded" not in log, "the server had to wait for nobody"
