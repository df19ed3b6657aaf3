"""Archives on real object stores pass the contract, in both formats.

Two S3 servers of the tests, and any other store: TORPOR_TEST_ARCHIVE_URL names it, TORPOR_TEST_ARCHIVE_OPTIONS has its options
as JSON. Nothing is removed there.
"""

import json
import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.contracts.archives_contract import ArchivesContract, Homes, PackWriter
from tests.contracts.test_archives_contract import Directories
from tests.support.moto_server import moto_server
from tests.support.packed_archives import PackedArchives
from tests.support.s3_server import S3Server, s3_server
from tests.support.stored_packs import PacksInBucket
from torpor.archives.archives import HomeArchives
from torpor.archives.store import ArchiveStore, StoreAddress
from torpor.ports import Archives


@dataclass(frozen=True)
class Bucket:
    """A part of a bucket that only one test uses."""

    url: str
    options: dict[str, str]


class BucketContract(ArchivesContract):
    kind: type[HomeArchives] = HomeArchives

    @pytest.fixture
    def bucket(self, server: S3Server) -> Bucket:
        return Bucket(server.new_url(), server.options)

    @pytest.fixture
    def archives(self, bucket: Bucket) -> Archives:
        return self.kind(bucket.url, bucket.options)

    @pytest.fixture
    def unreachable(self, bucket: Bucket) -> Archives:
        return self.kind(bucket.url, {**bucket.options, "endpoint": "http://127.0.0.1:9"})

    @pytest.fixture
    def homes(self, tmp_path: Path) -> Homes:
        return Directories(tmp_path)

    @pytest.fixture
    def packs(self, bucket: Bucket) -> PackWriter:
        return PacksInBucket(ArchiveStore(StoreAddress.parse(bucket.url), bucket.options))


@pytest.fixture(scope="module")
def seaweedfs() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture(scope="module")
def moto() -> Iterator[S3Server]:
    with moto_server() as server:
        yield server


@pytest.mark.long
class TestSeaweedFS(BucketContract):
    @pytest.fixture
    def server(self, seaweedfs: S3Server) -> S3Server:
        return seaweedfs


class TestPackedSeaweedFS(TestSeaweedFS):
    kind = PackedArchives


class OnMoto(BucketContract):
    @pytest.fixture
    def server(self, moto: S3Server) -> S3Server:
        return moto


@pytest.mark.long
class TestMoto(OnMoto):
    pass


class TestPackedMoto(OnMoto):
    kind = PackedArchives


class TestGivenStore(BucketContract):
    __test__ = "TORPOR_TEST_ARCHIVE_URL" in os.environ

    @pytest.fixture
    def bucket(self) -> Bucket:
        url, options = os.environ["TORPOR_TEST_ARCHIVE_URL"], os.environ["TORPOR_TEST_ARCHIVE_OPTIONS"]
        return Bucket(f"{url}/{uuid.uuid4()}", json.loads(options))


class TestPackedGivenStore(TestGivenStore):
    kind = PackedArchives
