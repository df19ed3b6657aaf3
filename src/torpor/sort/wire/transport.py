"""Configure gRPC for servers and connections."""

from typing import Any

from torpor.sort.sizes import MIB
from torpor.sort.wire.credentials import NAME

Options = list[tuple[str, Any]]

CONTROL_MESSAGE = 256 * MIB
"""Reports of many partitions contain many keys, and a key can be a long line."""
DATA_MESSAGE = 16 * MIB
"""A block is much smaller; the header lists every piece."""
KEEPALIVE_MS = 10_000
"""After this time without data the other side is pinged, and has the same time to answer."""
WINDOW = 2 * MIB
"""The most bytes of one data stream that are in transit or in memory until the receiver reads them."""

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
    # A block is one frame.
    ("grpc.http2.max_frame_size", 4 * MIB),
    # gRPC would find a window by itself, in steps, and without a predictable limit.
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
        # Traffic between master and workers does not use a proxy from the environment.
        ("grpc.enable_http_proxy", 0),
        # gRPC shares a connection between channels to the same address, but a renewed channel must have a new connection.
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1_000),
        # The timeout of one attempt to connect.
        ("grpc.min_reconnect_backoff_ms", 3_000),
        # The callers retry, because they know which calls may be repeated.
        ("grpc.enable_retries", 0),
    ]
