"""What runs in processes of a fault server (`fault_server`)."""

from torpor.archives import job as archive_job
from torpor.archives.packs import stat_cache


def job(arguments: list[str]) -> int:
    """An archive job, with the stat cache also in memory (`tests/archives/packs/conftest.py`)."""
    stat_cache.FILE_SYSTEMS |= {"tmpfs"}
    return archive_job.main(arguments)
