"""Jobs that are stopped at every step and continue later, while other jobs archive the same home."""

from collections.abc import Iterator
from pathlib import Path
from signal import SIGSTOP
from tempfile import TemporaryDirectory

import pytest

from tests.support.archive_jobs import roomy
from tests.support.fault_server import Ended
from tests.support.faulty_jobs import FaultyJobs, change, error_of, faulty_jobs, fill
from torpor.archives.tree import tree_root
from torpor.domain.errors import Code
from torpor.domain.records import ArchiveKey

pytestmark = pytest.mark.long

MOST_STEPS = 500
WORKSPACE = "0d1f8a3c-0000-4000-8000-000000000001"


@pytest.fixture
def jobs() -> Iterator[FaultyJobs]:
    with TemporaryDirectory(dir=roomy(), prefix="torpor-test-") as directory, faulty_jobs(Path(directory), WORKSPACE) as made:
        yield made


def require_one_of(jobs: FaultyJobs, key: ArchiveKey, ended: Ended, trees: list[str]) -> bool:
    """The job made an archive of one of these trees, or refused; True if it made one. There is never a mix."""
    if ended.code != 0:
        assert error_of(ended)["code"] == Code.HOME_CHANGED, error_of(ended)
        assert not jobs.has_root(key)
        return False
    proven = jobs.proven(key, ended)
    jobs.require_whole(key)
    assert tree_root(jobs.restored(proven)) in trees
    return True


def test_two_operations_archive_a_home_that_changed_in_between(jobs: FaultyJobs) -> None:
    """The first job is stopped, the workspace runs and is archived by another operation, and then the first job continues."""
    first = jobs.new_home()
    fill(first)
    base = jobs.archived(first)
    home = jobs.restored(base)
    seen = {False: 0, True: 0}
    for at in range(1, MOST_STEPS):
        change(home, 2 * at)
        before, key, other = tree_root(home), jobs.new_key(), jobs.new_key()
        stopped = jobs.archive(home, key, base, at, SIGSTOP)
        if not stopped.is_stopped:
            stopped.required()
            break
        change(home, 2 * at + 1)
        after = tree_root(home)
        proven = jobs.archived(home, other, base)
        assert tree_root(jobs.restored(proven)) == after
        seen[require_one_of(jobs, key, jobs.server.resume(stopped), [before, after])] += 1
        assert tree_root(home) == after
        jobs.require_whole(other)
        jobs.require_whole(base.archive.key)
    else:
        pytest.fail("there is always another step")
    assert seen[True] > 5


def test_two_jobs_of_one_operation_make_one_archive(jobs: FaultyJobs) -> None:
    """The controller of the first job is gone, and the next controller starts a job of the same operation."""
    home = jobs.new_home()
    fill(home)
    base = jobs.archived(home)
    change(home)
    tree = tree_root(home)
    for at in range(1, MOST_STEPS):
        key = jobs.new_key()
        stopped = jobs.archive(home, key, base, at, SIGSTOP)
        if not stopped.is_stopped:
            stopped.required()
            break
        proven = jobs.archived(home, key, base)
        objects = jobs.objects()
        late = jobs.proven(key, jobs.server.resume(stopped))
        assert late.archive == proven.archive
        assert tree_root(jobs.restored(late)) == tree
        jobs.require_whole(key)
        assert objects <= jobs.objects(), "nothing that is needed was removed"
    else:
        pytest.fail("there is always another step")
    assert at > 10
