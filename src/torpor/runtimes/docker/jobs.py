"""Run jobs at homes as containers of the engine, and continue with one that an earlier controller started."""

import contextlib
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence

from torpor.domain.errors import Code, Failed, Unavailable
from torpor.domain.names import OWN_FOLDER
from torpor.kit import layout
from torpor.ports import Fence, HomeJob, JobProgress
from torpor.runtimes.docker.containers import log_config
from torpor.runtimes.docker.docker_client import STDERR, DockerClient, EngineRefusal
from torpor.runtimes.docker.homes import EMPTY_IMAGE, EMPTY_TAG, HOMES, EngineHomes, volume_mount
from torpor.runtimes.docker.kit_volume import KitVolume
from torpor.runtimes.docker.listing import ListedContainer, ListedHome
from torpor.runtimes.docker.options import DockerOptions
from torpor.runtimes.home_record import BIRTH_FILE
from torpor.runtimes.job_answer import JobAnswer
from torpor.runtimes.job_order import order_of
from torpor.runtimes.object_labels import ORDER, ObjectKind, home_labels, home_name, job_name
from torpor.runtimes.program_orders import HOME, INSIDE
from torpor.runtimes.timeouts import finish_despite_cancel

TERM_S = 2.0
"""Between SIGTERM and SIGKILL: long enough to abort an upload, since the store charges for incomplete ones."""
LOG_BYTES = 256 << 20
"""A job's output is read from the engine's log, so it must contain all of it."""
LONGEST_LINE = 16 << 20


class EngineJobs:
    def __init__(
        self,
        client: DockerClient,
        homes: EngineHomes,
        options: DockerOptions,
        installation_key: bytes,
        volume: KitVolume,
    ) -> None:
        self._client = client
        self._homes = homes
        self._options = options
        self._installation_key = installation_key
        self._kit_volume = volume

    # ── start ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def begin(self, listed: ListedHome, job: HomeJob, fence: Fence) -> str:
        """The container of this job: a new one, or that of an earlier controller. All other jobs of the home are ended."""
        order = order_of(job, self._installation_key)
        adopted: str | None = None
        for other in listed.jobs:
            if adopted is None and not job.writes and can_be_adopted(other, order):
                adopted = other.id
            else:
                await self._client.remove_container(other.id)
        if adopted is not None:
            return adopted
        name = job_name(listed.home, fence.op_id)
        argv = (*job.argv, HOME)
        return await self._start(name, listed, argv, job.stdin, {"order": order, "epoch": str(fence.epoch)}, writes=job.writes)

    async def begin_measuring(self, listed: ListedHome) -> str:
        argv = (*layout.python_argv(), f"{INSIDE}/measure_home.py", HOME)
        return await self._start(job_name(listed.home, f"size-{secrets.token_hex(4)}"), listed, argv, b"", {}, writes=False)

    async def _start(
        self, name: str, listed: ListedHome, argv: Sequence[str], stdin: bytes, more: Mapping[str, str], *, writes: bool
    ) -> str:
        options = self._options
        await self._kit_volume.ensure()
        check = (f"{INSIDE}/home_job.py", f"{HOMES}/{OWN_FOLDER}/{BIRTH_FILE}", listed.birth)
        config = {
            "Image": options.job_image or f"{EMPTY_IMAGE}:{EMPTY_TAG}",
            "Entrypoint": [*layout.python_argv(), *check, *argv],
            "Cmd": [],
            "User": f"{options.user}:{options.user}",
            "WorkingDir": "/",
            "Env": [f"{name}={value}" for name, value in layout.environment().items()],
            "OpenStdin": True,
            "StdinOnce": True,
            "AttachStdin": True,
            "Labels": home_labels(options.installation, ObjectKind.JOB, listed.home, **more),
            "HostConfig": {
                "Mounts": [
                    volume_mount(home_name(listed.home), HOMES, options.installation),
                    self._kit_volume.mount(),
                    *({"Type": "bind", "Source": path, "Target": path} for path in options.job_paths),
                ],
                "NetworkMode": options.job_network.name,
                "RestartPolicy": {"Name": "no"},
                "CapDrop": ["ALL"],
                "SecurityOpt": ["no-new-privileges"],
                "LogConfig": log_config(LOG_BYTES),
            },
        }
        container = ""
        try:
            container = await self._homes.create_from_empty_image(name, config, options.job_network)
            await self._client.start_with_input(container, options.job_network, stdin)
        except EngineRefusal as refusal:
            if container:
                await self._client.remove_container(container)
            raise Failed(refusal.code(Code.INTERNAL), f"the engine did not start the job: {refusal.message}") from refusal
        return container

    # ── while it runs ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def finish(self, container: str, progress: JobProgress) -> Mapping[str, object]:
        """Wait for its result. If the caller is cancelled, the job is ended first."""
        try:
            answer = JobAnswer(progress)
            async for is_error, data in _lines(self._client.follow(container)):
                if is_error:
                    answer.take_errors(data)
                else:
                    answer.take_line(data)
            exit_code = await self._exit_code(container)
        except Unavailable:
            raise  # the job may still run; the next call finds it
        except BaseException:
            await finish_despite_cancel(self._end(container))
            raise
        try:
            return answer.outcome(exit_code)
        finally:
            await finish_despite_cancel(self._client.remove_container(container))

    async def _exit_code(self, container: str) -> int:
        facts = await self._client.inspect_container(container)
        if facts is None:
            raise Failed(Code.INTERNAL, "the job was ended, because another operation of its workspace began")
        state = facts.get("State") or {}
        if state.get("Running"):
            raise Unavailable("the engine stopped to report the output of a job that still runs")
        return int(state.get("ExitCode", -1))

    async def _end(self, container: str) -> None:
        with contextlib.suppress(EngineRefusal):
            await self._client.stop_container(container, TERM_S)
        await self._client.remove_container(container)

    async def end_all(self, homes: Sequence[ListedHome]) -> None:
        for listed in homes:
            for job in listed.jobs:
                await self._client.remove_container(job.id)


def can_be_adopted(job: ListedContainer, order: str) -> bool:
    """A job that only reads, has these orders, and runs or has ended by itself."""
    return job.labels.get(ORDER) == order and (job.state == "running" or job.has_ended)


async def _lines(output: AsyncIterator[tuple[int, bytes]]) -> AsyncIterator[tuple[bool, bytes]]:
    """(whether it is standard error, data): standard output in lines, errors as they come."""
    line = bytearray()
    async for stream, data in output:
        if stream == STDERR:
            yield True, data
            continue
        *complete, rest = (bytes(line) + data).split(b"\n")
        for one in complete:
            yield False, one
        line = bytearray(rest[-LONGEST_LINE:])
