"""The buffers fit into the memory."""

import pytest

from torpor.sort.data.memory_budget import memory_budget
from torpor.sort.data.segments import Inputs, Segment
from torpor.sort.record import GENSORT, Fixed, Format, Lines
from torpor.sort.sizes import GIB, MIB


def inputs(size: int, files: int = 1) -> Inputs:
    return Inputs(tuple(Segment(str(number), 0, size // files, size // files, 0) for number in range(files)))


@pytest.mark.parametrize("memory", [4 * MIB, 16 * MIB, 128 * MIB, 2 * GIB, 64 * GIB])
@pytest.mark.parametrize("threads", [1, 2, 8])
@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("form", [GENSORT, Lines()], ids=str)
def test_everything_that_is_held_at_once_fits(memory: int, threads: int, workers: int, form: Format) -> None:
    budget = memory_budget(memory, threads, form, inputs(1 << 40), workers)
    assert not budget.lazily
    assert budget.sweep_threads * 3 * budget.chunk + budget.received <= memory
    merging = budget.arena + budget.arena // 3 + 2 * (budget.flush + budget.block)
    assert budget.merge_threads * merging + budget.received <= memory
    assert 1 <= budget.sweep_threads <= threads
    assert 1 <= budget.merge_threads <= threads


def test_inputs_stay_mapped_where_they_fit() -> None:
    assert memory_budget(2 * GIB, 2, GENSORT, inputs(2_000_000_000), 1).lazily
    assert not memory_budget(2 * GIB, 2, GENSORT, inputs(2_000_000_000), 2).lazily
    assert memory_budget(2 * GIB, 2, GENSORT, inputs(1_000_000_000), 2).lazily
    assert not memory_budget(1 * GIB, 2, GENSORT, inputs(2_000_000_000), 1).lazily
    assert not memory_budget(2 * GIB, 2, Lines(), inputs(1_000_000), 1).lazily
    assert not memory_budget(2 * GIB, 2, GENSORT, inputs(1_000_000, files=100), 1).lazily
    # The keys of such short records would take more memory than the records.
    assert not memory_budget(2 * GIB, 2, Fixed(4, 0, 4), inputs(1 << 30), 1).lazily
