"""Sort the same records with DuckDB, Polars and Ray Data.

Started by sort.py with the Python of its own environment, never imported. Imports, opening the input and starting a cluster are
done before `begin` is printed, so they are not counted; `end` is printed when the output is written.

    python -P bench/sort_peers.py sort PEER FOLDER OUTPUT CORES MEMORY_BYTES
    python -P bench/sort_peers.py prepare RAW FOLDER       the same records as Arrow and as Parquet
    python -P bench/sort_peers.py show OUTPUT              an output's records as they were in the raw file, to stdout
    python -P bench/sort_peers.py versions PACKAGE...
"""

import os
import secrets
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

ARROW, PARQUET = "records.arrow", "records.parquet"
KEY, RECORD = 10, 100
ROWS = 500_000
"""Rows in one batch: enough batches for every core, and each is large."""


def mark(word: str) -> None:
    sys.stdout.write(word + "\n")
    sys.stdout.flush()


def arrow_table(folder: Path) -> Any:
    """Mapped, not read: its memory is the page cache."""
    arrow = import_module("pyarrow")
    return arrow.ipc.open_file(arrow.memory_map(str(folder / ARROW))).read_all()


def connection(cores: int, scratch: Path, memory: int) -> Any:
    connected = import_module("duckdb").connect()
    connected.execute(f"SET threads = {cores}")
    connected.execute(f"SET temp_directory = '{scratch}'")
    connected.execute(f"SET memory_limit = '{memory}B'")
    connected.execute("SET enable_progress_bar = false")
    return connected


def duckdb_arrow(folder: Path, output: Path, cores: int, memory: int) -> None:
    arrow = import_module("pyarrow")
    with tempfile.TemporaryDirectory(dir=output.parent) as scratch:
        connected = connection(cores, Path(scratch), memory)
        connected.register("records", arrow_table(folder))
        mark("begin")
        found = connected.sql("SELECT * FROM records ORDER BY key").to_arrow_reader(ROWS)
        with arrow.OSFile(str(output), "wb") as file, arrow.ipc.new_file(file, found.schema) as writer:
            for batch in found:
                writer.write_batch(batch)
        mark("end")


def duckdb_parquet(folder: Path, output: Path, cores: int, memory: int) -> None:
    with tempfile.TemporaryDirectory(dir=output.parent) as scratch:
        connected = connection(cores, Path(scratch), memory)
        mark("begin")
        connected.execute(
            f"COPY (SELECT * FROM read_parquet('{folder / PARQUET}') ORDER BY key)"
            f" TO '{output}' (FORMAT parquet, COMPRESSION uncompressed)"
        )
        mark("end")


def polars_eager(folder: Path, output: Path, cores: int, memory: int) -> None:
    os.environ["POLARS_MAX_THREADS"] = str(cores)
    polars = import_module("polars")
    frame = polars.read_ipc(folder / ARROW)
    mark("begin")
    frame.sort("key").write_ipc(output)
    mark("end")


def polars_streaming(folder: Path, output: Path, cores: int, memory: int) -> None:
    os.environ["POLARS_MAX_THREADS"] = str(cores)
    polars = import_module("polars")
    mark("begin")
    polars.scan_ipc(folder / ARROW).sort("key").sink_ipc(output, engine="streaming")
    mark("end")


def ray_data(folder: Path, output: Path, cores: int, memory: int) -> None:
    # A token of this run; otherwise Ray leaves one in the home directory.
    os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32))
    ray = import_module("ray")
    # It has sockets, whose paths must be short.
    with tempfile.TemporaryDirectory(prefix="ray") as scratch:
        ray.init(
            num_cpus=cores,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
            _node_ip_address="127.0.0.1",
            _temp_dir=scratch,
        )
        data = import_module("ray.data")
        data.DataContext.get_current().enable_progress_bars = False
        records = data.read_parquet(str(folder / PARQUET)).materialize()
        mark("begin")
        records.sort("key").write_parquet(str(output), compression="none")
        mark("end")
        ray.shutdown()


PEERS: dict[str, Callable[[Path, Path, int, int], None]] = {
    "duckdb-arrow": duckdb_arrow,
    "duckdb-parquet": duckdb_parquet,
    "polars": polars_eager,
    "polars-streaming": polars_streaming,
    "ray-data": ray_data,
}


def prepare(raw: Path, folder: Path) -> None:
    """Fixed-size binaries without compression and dictionary, which cost the peers least to read and to write."""
    numpy, arrow, parquet = import_module("numpy"), import_module("pyarrow"), import_module("pyarrow.parquet")
    records = numpy.memmap(raw, dtype=numpy.uint8, mode="r").reshape(-1, RECORD)
    widths = {"key": KEY, "value": RECORD - KEY}
    schema = arrow.schema([(name, arrow.binary(width)) for name, width in widths.items()])
    with (
        arrow.OSFile(str(folder / ARROW), "wb") as file,
        arrow.ipc.new_file(file, schema) as as_arrow,
        parquet.ParquetWriter(folder / PARQUET, schema, compression="none", use_dictionary=False) as as_parquet,
    ):
        for begin in range(0, len(records), ROWS):
            some = records[begin : begin + ROWS]
            columns = [
                arrow.FixedSizeBinaryArray.from_buffers(
                    arrow.binary(part.shape[1]), len(part), [None, arrow.py_buffer(numpy.ascontiguousarray(part))]
                )
                for part in (some[:, :KEY], some[:, KEY:])
            ]
            batch = arrow.record_batch(columns, schema=schema)
            as_arrow.write_batch(batch)
            as_parquet.write_batch(batch)


def batches(output: Path) -> Iterator[Any]:
    arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")

    def first_key(file: Path) -> bytes:
        key: bytes = parquet.read_table(file, columns=["key"])[0][0].as_py()
        return key

    # Ray names its files in the order in which they were finished.
    for file in sorted(output.iterdir(), key=first_key) if output.is_dir() else [output]:
        with file.open("rb") as opened:
            is_parquet = opened.read(4) == b"PAR1"
        if is_parquet:
            yield from parquet.ParquetFile(file).iter_batches(ROWS)
        else:
            reader = arrow.ipc.open_file(arrow.memory_map(str(file)))
            yield from (reader.get_batch(number) for number in range(reader.num_record_batches))


def show(output: Path) -> None:
    numpy, arrow = import_module("numpy"), import_module("pyarrow")
    for batch in batches(output):
        # Some return one batch with everything, and a copy would not fit beside it.
        for begin in range(0, batch.num_rows, ROWS):
            some = batch.slice(begin, ROWS)
            joined = numpy.empty((some.num_rows, RECORD), numpy.uint8)
            for name, part in (("key", joined[:, :KEY]), ("value", joined[:, KEY:])):
                column = some.column(some.schema.get_field_index(name)).cast(arrow.large_binary())
                _, offsets, data = column.buffers()
                ends = numpy.frombuffer(offsets, numpy.int64)[column.offset : column.offset + len(column) + 1]
                part[:] = numpy.frombuffer(data, numpy.uint8)[ends[0] : ends[-1]].reshape(part.shape)
            sys.stdout.buffer.write(joined.data)


def main(words: list[str]) -> None:
    match words:
        case ["sort", peer, folder, output, cores, memory]:
            PEERS[peer](Path(folder), Path(output), int(cores), int(memory))
        case ["prepare", raw, folder]:
            prepare(Path(raw), Path(folder))
        case ["show", output]:
            show(Path(output))
        case ["versions", *packages]:
            sys.stdout.write("".join(f"{package} {version(package)}\n" for package in packages))
        case _:
            sys.exit(f"{__doc__}\n{' '.join(words)!r} is none of these")


# Not behind the usual guard, by which `make bench` finds the benchmarks: this is not one.
main(sys.argv[1:])
