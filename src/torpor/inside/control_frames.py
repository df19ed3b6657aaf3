"""Define the frames of an agent's control connections. `agent` describes them."""

REQUEST, INPUT, SIZE, SIGNAL = b"R", b"I", b"S", b"K"
YES, NO, OUTPUT, ERRORS, TAKEN, EXIT = b"Y", b"N", b"O", b"E", b"T", b"X"

HEAD_BYTES = 5
LARGEST_FRAME = 1 << 20


def frame(kind: bytes, payload: bytes = b"") -> bytes:
    return kind + len(payload).to_bytes(4, "big") + payload


def parse_head(head: bytes) -> tuple[bytes, int] | None:
    """The kind and the length of a frame; None if it is too large."""
    length = int.from_bytes(head[1:], "big")
    return (head[:1], length) if length <= LARGEST_FRAME else None
