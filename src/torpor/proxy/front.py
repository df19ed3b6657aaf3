"""How do bytes get from a client to the platform or to a workspace, and back?

One listener, one request on a connection: its head is read and judged, then bytes flow both ways as fast as the slower side
takes them. Nothing is buffered here but one piece for each direction.
"""

import asyncio
import errno
import socket
import struct
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from typing import assert_never

import structlog

from torpor import metrics
from torpor.domain.errors import Hopeless, Refused
from torpor.ports import Address
from torpor.proxy import pages
from torpor.proxy.body import Body
from torpor.proxy.frames import Bytes, Carriage, Frames
from torpor.proxy.head import (
    LARGEST_HEAD_BYTES,
    AnswerHead,
    BadHead,
    Head,
    answer_ends,
    head_ends,
    parse,
    parse_answer,
    pass_back,
    pass_on,
)
from torpor.proxy.outcomes import Outcome
from torpor.proxy.pages import Notice
from torpor.proxy.route import Asleep, Place, Running, ToNobody, ToPlatform, ToWorkspace, Unknown, destination, may_exist
from torpor.proxy.usage import UNWATCHED, Tie, Usage, Use

log = structlog.get_logger()

PIECE_BYTES = 64 * 1024
BACKLOG = 1024
HEAD_PATIENCE_S = 30.0
FIND_PATIENCE_S = 10.0
CONNECT_PATIENCE_S = 10.0
UPGRADE_PATIENCE_S = 60.0
# A client that has closed its half may only be listening, or be gone: silence for so long means gone.
HALF_CLOSED_PATIENCE_S = 60.0
# Closing on a client that still sends would destroy the answer on its way: it is listened to for so long.
LINGER_S = 2.0
ACCEPT_AGAIN_S = 0.1
# Connections that have not sent a whole head yet. They cost nothing but a place, and places are counted.
MOST_WAITING = 1000

NOT_HERE = {errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.EPROTONOSUPPORT}


class NoAnswer(Exception):
    """The other side hung up, or spoke something else than HTTP, before it answered."""


class ClientGone(Exception):
    """Nobody is left to answer."""


class CutOff(Exception):
    """The answer broke off in the middle."""


class TooMany(Exception):
    """Too many connections wait to send their head."""


class Stage(Enum):
    """How far a connection has come."""

    WAITING = auto()
    """Its head has not arrived."""
    UNDER_WAY = auto()
    """A request is being answered."""
    TUNNEL = auto()
    """It speaks another protocol now, and ends when it likes."""


@dataclass(frozen=True, slots=True)
class Forward:
    """Where a request goes, and what is said when nobody answers there."""

    address: Address
    to_workspace: bool
    sorry: Notice
    use: Use = UNWATCHED


class Line:
    """One connected socket."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._loop = asyncio.get_running_loop()
        self.moved_at = self._loop.time()

    async def receive(self) -> bytes:
        """The next bytes; none at the end."""
        data = await self._loop.sock_recv(self._socket, PIECE_BYTES)
        self.moved_at = self._loop.time()
        return data

    async def send(self, data: bytes) -> None:
        """On return the kernel has them all."""
        await self._loop.sock_sendall(self._socket, data)
        self.moved_at = self._loop.time()

    def finish(self) -> None:
        """No more bytes from here; the other direction stays open."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def cut(self) -> None:
        """Close so that the other side notices: what it has got is not all."""
        with suppress(OSError):
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def close(self) -> None:
        self._socket.close()


class Connection:
    """A client, and what has become of it so far."""

    def __init__(self, line: Line, client: str) -> None:
        self.line = line
        self.client = client
        self.stage = Stage.WAITING
        self.answer_begun = False


class Front:
    """The product's one port. `find` says where a workspace is now; it may raise, which is answered with 503."""

    def __init__(
        self,
        *,
        platform: Address,
        find: Callable[[str], Awaitable[Place]],
        port: int,
        hosts: Sequence[str] = ("127.0.0.1", "::1"),
        usage: Usage = UNWATCHED,
    ) -> None:
        self.port = port
        """The port that is listened on; with 0, the one that was free, once started."""
        self._platform = platform
        self._find = find
        self._hosts = hosts
        self.usage = usage
        self._listeners: list[socket.socket] = []
        self._accepting: list[asyncio.Task[None]] = []
        self._connections: dict[asyncio.Task[None], Connection] = {}

    async def start(self) -> None:
        """Listen. Refused `port_in_use` or `port_not_allowed`."""
        try:
            for host in self._hosts:
                if listener := self._listen(host):
                    self._listeners.append(listener)
        except Refused:
            self._close_listeners()
            raise
        if not self._listeners:
            raise Hopeless(f"none of the addresses {', '.join(self._hosts)} exists on this machine")
        self._accepting = [asyncio.create_task(self._accept(listener)) for listener in self._listeners]

    async def stop(self, grace_s: float = 5) -> None:
        """Accept nobody, let requests under way finish, then close. Tunnels have no end to wait for."""
        await _end(self._accepting)
        self._accepting = []
        self._close_listeners()
        await _end([task for task, connection in self._connections.items() if connection.stage is Stage.WAITING])
        under_way = [task for task, connection in self._connections.items() if connection.stage is Stage.UNDER_WAY]
        if under_way:
            await asyncio.wait(under_way, timeout=grace_s)
        await _end(list(self._connections))

    def _listen(self, host: str) -> socket.socket | None:
        """A listening socket; None where this machine does not have the address."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            listener = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:
            if error.errno in NOT_HERE:
                return None
            raise
        try:
            listener.setblocking(False)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listener.bind((host, self.port))
            listener.listen(BACKLOG)
        except OSError as error:
            listener.close()
            match error.errno:
                case errno.EADDRINUSE:
                    raise Refused(
                        "port_in_use",
                        f"port {self.port} is in use on {host}; choose another with --port",
                        port=self.port,
                        host=host,
                    ) from error
                case errno.EACCES:
                    raise Refused(
                        "port_not_allowed",
                        f"port {self.port} is not allowed for this user; choose one above 1023 with --port",
                        port=self.port,
                        host=host,
                    ) from error
                case number if number in NOT_HERE:
                    return None
                case _:
                    raise
        self.port = listener.getsockname()[1]
        return listener

    def _close_listeners(self) -> None:
        for listener in self._listeners:
            listener.close()
        self._listeners = []

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connected, peer = await loop.sock_accept(listener)
            except OSError as error:
                # No file descriptor is left, or the client changed its mind: both pass.
                log.warning("cannot_accept", error=str(error))
                await asyncio.sleep(ACCEPT_AGAIN_S)
                continue
            with suppress(OSError):
                connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = Connection(Line(connected), peer[0])
            task = asyncio.create_task(self._serve(connection))
            self._connections[task] = connection
            metrics.proxy_connections.inc()
            task.add_done_callback(self._forget)
            # An accept that need not wait does not let others run.
            await asyncio.sleep(0)

    def _forget(self, task: asyncio.Task[None]) -> None:
        # Here, because a task that is cancelled before its first step never comes to any `finally` of its own.
        self._connections.pop(task).line.close()
        metrics.proxy_connections.dec()

    async def _serve(self, connection: Connection) -> None:
        """One connection from its first byte to its last. Whatever happens ends here, and touches no other."""
        line = connection.line
        try:
            await self._answer(connection)
            line.finish()
            async with asyncio.timeout(LINGER_S):
                while await line.receive():
                    pass
        except (CutOff, BadHead):
            line.cut()
        except (ClientGone, TimeoutError, OSError):
            if connection.stage is not Stage.WAITING and not connection.answer_begun:
                _count(Outcome.CLIENT_GONE)
        except Exception:
            log.exception("connection_failed", client=connection.client)

    async def _answer(self, connection: Connection) -> None:
        head: Head | None = None
        try:
            self._check_room()
            head, rest = await read_head(connection.line)
            connection.stage = Stage.UNDER_WAY
            match await self._decide(head):
                case Forward() as forward:
                    notice = await exchange(connection, head, rest, forward)
                case Notice() as notice:
                    pass
        except BadHead as bad:
            if connection.answer_begun:
                raise
            notice = pages.refused(bad.status, bad.message)
        except TooMany:
            notice = pages.too_many()
        if notice is not None:
            connection.answer_begun = True
            _count(notice.outcome)
            await say(connection.line, notice, head)

    def _check_room(self) -> None:
        waiting = sum(connection.stage is Stage.WAITING for connection in self._connections.values())
        if waiting > MOST_WAITING:
            raise TooMany

    async def _decide(self, head: Head) -> Forward | Notice:
        """Where this request goes, or what is said instead."""
        if head.is_upgrade and head.is_cross_site:
            return pages.cross_site()
        match where := destination(head.host):
            case ToPlatform():
                return Forward(self._platform, to_workspace=False, sorry=pages.no_platform())
            case ToNobody(host):
                return pages.misdirected(host, self.port)
            case ToWorkspace(name):
                return await self._decide_workspace(name)
            case _:
                assert_never(where)

    async def _decide_workspace(self, name: str) -> Forward | Notice:
        if not may_exist(name):
            return pages.unknown(name)
        try:
            async with asyncio.timeout(FIND_PATIENCE_S):
                place = await self._find(name)
        except Exception as error:
            log.warning("cannot_find", workspace=name, error=repr(error))
            return pages.cannot_tell(name)
        match place:
            case Running(_, address, workspace_id, standby_ttl_s):
                use = self.usage.of(workspace_id, standby_ttl_s=standby_ttl_s) if workspace_id else UNWATCHED
                return Forward(address, to_workspace=True, sorry=pages.no_answer(name), use=use)
            case Asleep():
                return pages.asleep(place)
            case Unknown():
                return pages.unknown(name)
            case _:
                assert_never(place)


def _count(outcome: Outcome) -> None:
    metrics.proxy_requests_total.labels(outcome=outcome).inc()


async def _end(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


# ── the request ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def read_head(line: Line) -> tuple[Head, bytes]:
    """The head, and what came behind it already. BadHead when it is bad, late or endless; ClientGone when there is none."""
    arrived = b""
    searched = 0
    try:
        async with asyncio.timeout(HEAD_PATIENCE_S):
            while (end := head_ends(arrived, searched)) is None:
                searched = len(arrived)
                piece = await line.receive()
                if not piece:
                    raise ClientGone
                arrived += piece
    except TimeoutError:
        if not arrived:
            # A browser's spare connection, opened for a request that never came.
            raise ClientGone from None
        raise BadHead(408, f"The request's head did not arrive within {HEAD_PATIENCE_S:g} seconds.") from None
    return parse(arrived[:end]), arrived[end:]


async def say(line: Line, notice: Notice, head: Head | None) -> None:
    """Answer by ourselves."""
    answer = pages.render(notice, as_html=head is not None and head.wants_html)
    async with asyncio.timeout(HEAD_PATIENCE_S):
        await line.send(answer.render(with_body=head is None or head.method != b"HEAD"))


async def connect(address: Address) -> Line:
    """A connection to where the request goes; NoAnswer when there is none to be had."""
    loop = asyncio.get_running_loop()
    family = socket.AF_UNIX if address.unix_path else socket.AF_INET6 if ":" in (address.host or "") else socket.AF_INET
    connecting = socket.socket(family, socket.SOCK_STREAM)
    try:
        connecting.setblocking(False)
        if family != socket.AF_UNIX:
            connecting.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        async with asyncio.timeout(CONNECT_PATIENCE_S):
            await loop.sock_connect(connecting, address.unix_path or (address.host, address.port))
    except (OSError, TimeoutError) as error:
        connecting.close()
        raise NoAnswer(str(error)) from error
    except BaseException:
        connecting.close()
        raise
    return Line(connecting)


async def exchange(connection: Connection, head: Head, rest: bytes, forward: Forward) -> Notice | None:
    """Pass the request on and the answer back; what to say instead when there was none."""
    try:
        upstream = await connect(forward.address)
        try:
            await upstream.send(pass_on(head, client=connection.client, to_workspace=forward.to_workspace).render())
            tie = forward.use.requested()
            try:
                if head.is_upgrade:
                    await _upgrade(connection, upstream, head, rest, forward, tie)
                else:
                    await _converse(connection, upstream, head, rest, forward, tie)
            finally:
                tie.closed()
        except (OSError, NoAnswer) as error:
            if connection.answer_begun:
                raise CutOff from error
            raise NoAnswer(str(error)) from error
        finally:
            upstream.close()
    except NoAnswer as error:
        log.warning("no_answer", host=head.host, error=str(error))
        return forward.sorry
    return None


async def _converse(connection: Connection, upstream: Line, head: Head, rest: bytes, forward: Forward, tie: Tie) -> None:
    """Body there and answer back, at the same time: either may begin, or end, before the other."""
    sending = asyncio.create_task(_send_body(connection.line, upstream, Body(head.framing), rest))
    answering = asyncio.create_task(_pass_answer_back(connection, upstream, head.method, forward, tie))
    try:
        await asyncio.wait({sending, answering}, return_when=asyncio.FIRST_COMPLETED)
        # The answer's end is the end. The sender only ever ends by raising.
        (answering if answering.done() else sending).result()
    finally:
        await _end([sending, answering])


async def _send_body(client: Line, upstream: Line, body: Body, data: bytes) -> None:
    """Pass the body on, then stay with the client. Raises ClientGone when nobody waits for the answer, BadHead for no body."""
    upstream_listens = True
    while True:
        taken = body.take(data)
        if taken and upstream_listens:
            try:
                await upstream.send(data[:taken])
            except OSError:
                # It has heard enough, and may still answer: the rest of the body is for nobody.
                upstream_listens = False
        await asyncio.sleep(0)
        try:
            data = await client.receive()
        except OSError as error:
            raise ClientGone from error
        if not data:
            break
    if not body.is_complete:
        raise ClientGone
    await _silence(client)
    raise ClientGone


async def _silence(line: Line) -> None:
    """Returns when nothing has moved for too long on a line of which one half is closed."""
    loop = asyncio.get_running_loop()
    while (left := line.moved_at + HALF_CLOSED_PATIENCE_S - loop.time()) > 0:
        await asyncio.sleep(left)


# ── the answer ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def _pass_answer_back(connection: Connection, upstream: Line, method: bytes, forward: Forward, tie: Tie) -> None:
    answer, data = await _read_answer(connection, upstream, forward)
    await _pass_body_back(connection, upstream, answer, data, method, forward, tie)


async def _read_answer(connection: Connection, upstream: Line, forward: Forward) -> tuple[AnswerHead, bytes]:
    """The head of the real answer, and what came behind it. Interim ones before it have been passed back."""
    arrived = b""
    while True:
        while (end := answer_ends(arrived)) is None:
            if len(arrived) > LARGEST_HEAD_BYTES:
                raise NoAnswer("the head of the answer has no end")
            piece = await upstream.receive()
            if not piece:
                raise NoAnswer("it hung up without an answer")
            arrived += piece
        try:
            answer = parse_answer(arrived[:end])
        except BadHead as bad:
            raise NoAnswer(bad.message) from bad
        arrived = arrived[end:]
        if not answer.is_interim:
            return answer, arrived
        await _to_client(connection, pass_back(answer, from_workspace=forward.to_workspace).render())


async def _pass_body_back(
    connection: Connection, upstream: Line, answer: AnswerHead, data: bytes, method: bytes, forward: Forward, tie: Tie
) -> None:
    """The answer to its end; CutOff when there is less of it than it says."""
    body = Body(answer.framing(method))
    if answer.is_event_stream:
        # It has no end: a download is use for as long as it takes, this is open in every forgotten tab.
        tie.closed()
    await _begin_answer(connection, answer, forward)
    while True:
        try:
            taken = body.take(data)
        except BadHead as bad:
            raise CutOff from bad
        await _to_client(connection, data[:taken])
        if body.is_complete:
            return
        # Where neither side makes us wait, nobody else would ever run.
        await asyncio.sleep(0)
        data = await upstream.receive()
        if not data:
            break
    if not body.may_end:
        raise CutOff


async def _begin_answer(connection: Connection, answer: AnswerHead, forward: Forward) -> None:
    connection.answer_begun = True
    to_whom = Outcome.WORKSPACE if forward.to_workspace else Outcome.PLATFORM
    _count(Outcome.TUNNEL if answer.status == 101 else to_whom)
    await _to_client(connection, pass_back(answer, from_workspace=forward.to_workspace).render())


async def _to_client(connection: Connection, data: bytes) -> None:
    try:
        await connection.line.send(data)
    except OSError as error:
        raise ClientGone from error


async def _upgrade(connection: Connection, upstream: Line, head: Head, early: bytes, forward: Forward, request: Tie) -> None:
    """Ask for another protocol; when that is granted, be a wire."""
    try:
        async with asyncio.timeout(UPGRADE_PATIENCE_S):
            answer, rest = await _read_answer(connection, upstream, forward)
    except TimeoutError:
        raise NoAnswer("it did not answer to the upgrade") from None
    if answer.status != 101:
        await _pass_body_back(connection, upstream, answer, rest, head.method, forward, request)
        return
    carriages = (Frames(), Frames()) if head.is_websocket else (Bytes(), Bytes())
    tie = forward.use.connected()
    request.closed()
    try:
        await _begin_answer(connection, answer, forward)
        connection.stage = Stage.TUNNEL
        there = asyncio.create_task(_pump(connection.line, upstream, early, carriages[0], tie))
        back = asyncio.create_task(_pump(upstream, connection.line, rest, carriages[1], tie))
        await _tunnel(connection.line, there, back)
    finally:
        tie.closed()


async def _tunnel(client: Line, there: asyncio.Task[None], back: asyncio.Task[None]) -> None:
    """Both directions until both have ended; once one has, the other may not be silent for ever."""
    try:
        ended, open_still = await asyncio.wait({there, back}, return_when=asyncio.FIRST_COMPLETED)
        if open_still and not any(task.exception() for task in ended):
            silent = asyncio.create_task(_silence(client))
            try:
                await asyncio.wait({*open_still, silent}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                await _end([silent])
    finally:
        await _end([there, back])


async def _pump(source: Line, sink: Line, data: bytes, carriage: Carriage, tie: Tie) -> None:
    """Every byte from one to the other, and then the end, at the pace of the slower."""
    while data := data or await source.receive():
        if carriage.take(data):
            tie.carried()
        await sink.send(data)
        data = b""
        await asyncio.sleep(0)
    sink.finish()
