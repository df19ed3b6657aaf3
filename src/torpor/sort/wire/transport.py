"""How is gRPC set up, on both sides?"""

from typing import Any

from torpor.sort.sizes import MIB
from torpor.sort.wire.credentials import NAME

Options = list[tuple[str, Any]]

CONTROL_MESSAGE = 256 * MIB
"""Reports of many partitions name many keys, and a line may be a long key."""
DATA_MESSAGE = 16 * MIB
"""A block is far smaller; the header names every piece."""
KEEPALIVE_MS = 10_000
"""After so long without a sign the other side is asked for one, and given as long again to answer."""
WINDOW = 2 * MIB
"""What may be on its way in one data stream, and lie in memory until a receiver asks for it."""

BOTH: Options = [
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]
CONTROL: Options = [
    ("grpc.max_receive_message_length", CONTROL_MESSAGE),
    ("grpc.max_send_message_length", CONTROL_MESSAGE),
]
DATA: Options = [
    ("grpc.max_receive_message_length", DATA_MESSAGE),
    ("grpc.max_send_message_length", DATA_MESSAGE),
    # A block goes as one frame.
    ("grpc.http2.max_frame_size", 4 * MIB),
    # gRPC would find a window by itself, in steps, and without a bound that could be reckoned with.
    ("grpc.http2.lookahead_bytes", WINDOW),
    ("grpc.http2.bdp_probe", 0),
]


def server_options(*, data: bool) -> Options:
    return [
        *BOTH,
        *(DATA if data else CONTROL),
        # A second server on the same port would take half of the calls.
        ("grpc.so_reuseport", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", KEEPALIVE_MS // 2),
        ("grpc.http2.max_ping_strikes", 0),
    ]


def channel_options(*, data: bool) -> Options:
    return [
        *BOTH,
        *(DATA if data else CONTROL),
        ("grpc.ssl_target_name_override", NAME),
        # What is between master and workers is not for a proxy of the environment.
        ("grpc.enable_http_proxy", 0),
        # gRPC shares a connection between channels to the same address; a channel that is renewed must be new.
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1_000),
        # How long one attempt to connect may take.
        ("grpc.min_reconnect_backoff_ms", 3_000),
        # Calls are repeated where it is known which of them may be.
        ("grpc.enable_retries", 0),
    ]
