"""Run a job at a home as a process, and read its progress and result."""

import asyncio
import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

import structlog

from torpor.domain.errors import Code, Failed
from torpor.ports import HomeJob, JobProgress
from torpor.runtimes.job_answer import JobAnswer
from torpor.runtimes.process import cpu_weight, processes
from torpor.runtimes.process.cgroups import Cgroups
from torpor.runtimes.process.launch import SpawnedProcess, join_cgroups_argv, parent_death_argv
from torpor.runtimes.timeouts import finish_despite_cancel

log = structlog.get_logger()

LONGEST_LINE = 16 << 20
OUTPUT_END_S = 1.0

TERM_S = 2.0
"""Between SIGTERM and SIGKILL: long enough to abort an upload, since the store charges for incomplete ones."""
GONE_S = 10.0

# A job gets its secrets on standard input, and only those environment variables that are needed to reach the network.
PASSED_ON = {
    *("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR"),
    *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR"),
}
# These may be the only configuration of an object store. Jobs are Torpor's code; workspaces never get these variables.
PASSED_ON_PREFIXES = ("AWS_", "GOOGLE_", "AZURE_")


class Job:
    """One run of a job at a home."""

    def __init__(self, name: str, mark: str, records: Path, cgroups: Cgroups | None) -> None:
        self._name = name
        self._mark = mark
        self._records = records
        self._cgroups = cgroups
        self._spawned: SpawnedProcess | None = None
        self._identity: processes.ProcessIdentity | None = None
        self._is_terminated = False

    async def run(self, job: HomeJob, home: Path, progress: JobProgress) -> Mapping[str, object]:
        try:
            return await self._run(job, home, progress)
        finally:
            await finish_despite_cancel(self.end())

    async def _run(self, job: HomeJob, home: Path, progress: JobProgress) -> Mapping[str, object]:
        weight = cpu_weight.job_weight(job)
        cgroup_files = self._cgroups.make(self._name, None, cpu_weight=weight) if self._cgroups else []
        environment = {
            name: value for name, value in os.environ.items() if name in PASSED_ON or name.startswith(PASSED_ON_PREFIXES)
        }
        environment[processes.MARK] = self._mark
        argv = join_cgroups_argv(cgroup_files, parent_death_argv([*job.argv, str(home)]))
        try:
            self._spawned = spawned = SpawnedProcess(argv, environment=environment, separate_errors=True)
        except OSError as error:
            raise Failed(Code.INTERNAL, f"cannot start {job.argv[0]}: {error}") from error
        self._identity = processes.record(self._records, self._name, spawned.pid)
        answer = JobAnswer(progress)
        streams = asyncio.gather(
            _read_lines(await spawned.output(limit=LONGEST_LINE), answer),
            _read_errors(await spawned.errors(), answer),
            _feed(await spawned.input(), job.stdin),
            cpu_weight.make_nice(spawned, weight),
        )
        try:
            code = await spawned.wait()
            await asyncio.wait([streams], timeout=OUTPUT_END_S)
            await self._end_tree()  # a remaining child process may keep the pipes open
            await streams
        finally:
            streams.cancel()
            await asyncio.gather(streams, return_exceptions=True)
        return answer.outcome(code)

    async def end(self) -> None:
        """Send SIGTERM, wait, then kill the whole tree. Returns when no process is left."""
        await self._ask_to_end()
        await self._end_tree()
        if self._spawned is not None:
            with contextlib.suppress(asyncio.TimeoutError):  # a process that is blocked in the kernel; logged above
                await asyncio.wait_for(self._spawned.wait(), GONE_S)
            self._spawned.close_pipes()
        processes.forget(self._records, self._name)

    async def _ask_to_end(self) -> None:
        if self._spawned is None or self._identity is None or self._spawned.exit_code is not None:
            return
        if not self._is_terminated:
            self._is_terminated = True
            processes.terminate(self._identity)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._spawned.wait(), TERM_S)

    async def _end_tree(self) -> None:
        gone = True
        if self._identity is not None:
            gone = await asyncio.to_thread(processes.end_tree, self._identity)
        if self._cgroups:
            gone &= await asyncio.to_thread(self._cgroups.end, self._name)
        else:
            gone &= await asyncio.to_thread(processes.end_marked, self._mark)
        if not gone:
            log.warning("job_not_gone", job=self._name)


async def _read_lines(output: asyncio.StreamReader, answer: JobAnswer) -> None:
    while True:
        try:
            line = await output.readline()
        except ValueError:
            continue  # a line that is too long
        if not line:
            return
        answer.take_line(line)


async def _read_errors(errors: asyncio.StreamReader, answer: JobAnswer) -> None:
    while data := await errors.read(1 << 16):
        answer.take_errors(data)


async def _feed(writer: asyncio.StreamWriter, data: bytes) -> None:
    try:
        writer.write(data)
        await writer.drain()
    except (OSError, RuntimeError):
        pass  # the job ended before it read all input; its exit code says why
    finally:
        writer.close()
