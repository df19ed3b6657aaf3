"""Do the real archives keep the contract?"""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.contracts.archives_contract import ArchivesContract, Homes
from torpor.archives import HomeArchives
from torpor.domain.errors import Code, Failed
from torpor.ports import Archives, HomeJob


class Directories:
    def __init__(self, path: Path) -> None:
        self.path = path

    def fill(self, name: str, files: Mapping[str, bytes]) -> None:
        home = self.path / name
        home.mkdir()
        for file, content in files.items():
            (home / file).write_bytes(content)

    def show(self, name: str) -> Mapping[str, bytes]:
        return {path.name: path.read_bytes() for path in (self.path / name).iterdir()}

    async def run(self, name: str, job: HomeJob) -> Mapping[str, object]:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*job.argv, str(self.path / name), stdin=pipe, stdout=pipe)
        stdout, _ = await process.communicate(job.stdin)
        last = json.loads(stdout.splitlines()[-1])
        if "error" in last:
            raise Failed(Code(last["error"]["code"]), last["error"]["message"])
        result: Mapping[str, object] = last["result"]
        return result


class TestHomeArchives(ArchivesContract):
    @pytest.fixture
    def archives(self, tmp_path: Path) -> Archives:
        return HomeArchives(f"file://{tmp_path}/store")

    @pytest.fixture
    def unreachable(self, tmp_path: Path) -> Archives:
        (tmp_path / "file").touch()
        return HomeArchives(f"file://{tmp_path}/file/store")

    @pytest.fixture
    def homes(self, tmp_path: Path) -> Homes:
        return Directories(tmp_path)
