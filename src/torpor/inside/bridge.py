"""Copy bytes between Torpor's connections and those of the workspace's program."""

import asyncio
import contextlib
import select
import socket

SPLICED_AT_ONCE = 1 << 18


class BridgeEnd:
    """One end of a bridged connection. Bytes that the peer cannot take yet wait at the peer."""

    __slots__ = ("connected", "descriptor", "is_over", "peer", "read_all", "waiting", "watched_for")

    def __init__(self, connected: socket.socket, waiting: bytes = b"") -> None:
        self.connected = connected
        self.descriptor = connected.fileno()
        self.peer = self
        self.waiting = waiting
        """Bytes from the peer, still to be sent here."""
        self.read_all = False
        """It has sent its end of file."""
        self.is_over = False
        """Its further data is ignored: only the waiting bytes are sent."""
        self.watched_for = 0


class Bridge:
    """All bridged connections: the bytes of one end go to its peer at once, through one small buffer.

    The bridge has its own epoll, which the event loop polls: many ready ends cost the loop one iteration, and each end two
    system calls. A slow reader slows its writer; a half-close is forwarded.
    """

    def __init__(self) -> None:
        self._poll = select.epoll()
        self._ends: dict[int, BridgeEnd] = {}
        self._space = memoryview(bytearray(SPLICED_AT_ONCE))

    def listen(self) -> None:
        asyncio.get_running_loop().add_reader(self._poll.fileno(), self._look)

    def splice(self, one: socket.socket, other: socket.socket, early: bytes = b"") -> None:
        """The bridge takes over both sockets. `early`: bytes that `one` has sent already."""
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
                continue  # it was just closed together with its peer
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
        """The peer has sent its end of file; close this end's half, or both if it has ended too."""
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
        """The connection broke: send its remaining bytes, then close its peer as well."""
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
            # Closing would remove it as well, unless a child process that is just being started still has the descriptor.
            self._poll.unregister(end.descriptor)
        end.connected.close()

    def _watch(self, end: BridgeEnd) -> None:
        """Watch for the events that matter now, or for none if the end would only report its end of file again and again."""
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
