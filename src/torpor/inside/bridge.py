"""How do bytes get from a connection of Torpor's to one of the workspace's program, and back?"""

import asyncio
import contextlib
import select
import socket

SPLICED_AT_ONCE = 1 << 18


class BridgeEnd:
    """One end of a bridged connection. What was read from it and its peer does not take yet waits at the peer."""

    __slots__ = ("connected", "descriptor", "is_over", "peer", "read_all", "waiting", "watched_for")

    def __init__(self, connected: socket.socket, waiting: bytes = b"") -> None:
        self.connected = connected
        self.descriptor = connected.fileno()
        self.peer = self
        self.waiting = waiting
        """Of the peer's, still to be sent here."""
        self.read_all = False
        """It has said all it had to say."""
        self.is_over = False
        """Whatever it may still say, nobody hears it: only what waits is sent."""
        self.watched_for = 0


class Bridge:
    """Everything that is spliced: what one end says is sent to its peer at once, from the same few bytes of memory.

    A poll of its own that the event loop polls: many ends that are ready cost the loop one turn, and each of them two system
    calls. A slow reader slows its writer; a half-close passes on.
    """

    def __init__(self) -> None:
        self._poll = select.epoll()
        self._ends: dict[int, BridgeEnd] = {}
        self._space = memoryview(bytearray(SPLICED_AT_ONCE))

    def listen(self) -> None:
        asyncio.get_running_loop().add_reader(self._poll.fileno(), self._look)

    def splice(self, one: socket.socket, other: socket.socket, early: bytes = b"") -> None:
        """From here on they are the bridge's. `early`: what the one has said already."""
        near, far = BridgeEnd(one), BridgeEnd(other, early)
        near.peer, far.peer = far, near
        for end in (near, far):
            end.connected.setblocking(False)
            self._ends[end.descriptor] = end
            self._watch(end)

    def _look(self) -> None:
        for descriptor, events in self._poll.poll(0):
            end = self._ends.get(descriptor)
            if end is None:
                continue  # it was closed together with its peer, a moment ago
            if end.waiting and events & (select.EPOLLOUT | select.EPOLLHUP | select.EPOLLERR):
                self._send_waiting(end)
            elif events:
                self._pass_on(end)

    def _pass_on(self, end: BridgeEnd) -> None:
        peer = end.peer
        try:
            size = end.connected.recv_into(self._space)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._lose(end)
            return
        if size == 0:
            end.read_all = True
            self._say_end(peer)
            return
        try:
            sent = peer.connected.send(self._space[:size])
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError:
            self._lose(peer)
            return
        if sent < size:
            peer.waiting = bytes(self._space[sent:size])
            self._watch(end)
            self._watch(peer)

    def _send_waiting(self, end: BridgeEnd) -> None:
        try:
            sent = end.connected.send(end.waiting)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._lose(end)
            return
        end.waiting = end.waiting[sent:]
        if end.waiting:
            return
        if end.is_over:
            self._close(end)
        elif end.peer.read_all:
            self._say_end(end)
        else:
            self._watch(end)
            self._watch(end.peer)

    def _say_end(self, end: BridgeEnd) -> None:
        """Its peer has said all; so has this one, or it may still go on."""
        if not end.waiting:
            if end.read_all:
                self._close(end.peer)
                self._close(end)
                return
            with contextlib.suppress(OSError):
                end.connected.shutdown(socket.SHUT_WR)
        self._watch(end)
        self._watch(end.peer)

    def _lose(self, end: BridgeEnd) -> None:
        """It broke: what it has said is still sent, and then its peer is closed as well."""
        self._close(end)
        if end.peer.waiting:
            end.peer.is_over = True
            self._watch(end.peer)
        else:
            self._close(end.peer)

    def _close(self, end: BridgeEnd) -> None:
        if self._ends.pop(end.descriptor, None) is None:
            return
        if end.watched_for:
            # Closing would do that as well, unless a child is just being started, which has it for a moment.
            self._poll.unregister(end.descriptor)
        end.connected.close()

    def _watch(self, end: BridgeEnd) -> None:
        """For what can be done with it now; for nothing, where it would only say again and again that it has ended."""
        if end.descriptor not in self._ends:
            return
        wants_to_read = not (end.read_all or end.is_over or end.peer.waiting)
        wanted = (select.EPOLLIN if wants_to_read else 0) | (select.EPOLLOUT if end.waiting else 0)
        if wanted == end.watched_for:
            return
        if not end.watched_for:
            self._poll.register(end.descriptor, wanted)
        elif wanted:
            self._poll.modify(end.descriptor, wanted)
        else:
            self._poll.unregister(end.descriptor)
        end.watched_for = wanted
