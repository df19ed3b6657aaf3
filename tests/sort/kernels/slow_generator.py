"""Make a record step by step as the public benchmark describes it."""

MULTIPLIER = 0x2360ED051FC65DA44385DF649FCCF645
INCREMENT = 0x4A696D47726179524950202020202001


def states(count: int) -> list[int]:
    """One step after the other, from zero."""
    found, state = [], 0
    for _ in range(count):
        state = (MULTIPLIER * state + INCREMENT) % 2**128
        found.append(state)
    return found


def binary(number: int, state: int, key_state: int | None = None) -> bytes:
    key = (state if key_state is None else key_state).to_bytes(16, "big")[:10]
    filler = "".join(4 * digit for digit in f"{state % 2**48:012X}")
    return (
        key
        + bytes.fromhex("0011")
        + b"%032X" % number
        + bytes.fromhex("8899AABB")
        + filler.encode()
        + bytes.fromhex("CCDDEEFF")
    )


def ascii_(number: int, state: int, key_state: int | None = None) -> bytes:
    high, low = divmod(state if key_state is None else key_state, 2**64)
    key = bytes([high // 95**digit % 95 + 32 for digit in range(8)] + [low // 95**digit % 95 + 32 for digit in range(2)])
    filler = "".join(4 * digit for digit in f"{state % 2**52:013X}")
    return key + b"  %032X  " % number + filler.encode() + b"\r\n"
