"""Every phase and every operation has a status word."""

import pytest

from torpor.domain.states import Operation, Phase
from torpor.domain.status import STATUS_OF_OPERATION, STATUS_OF_PHASE, status_word


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("operation", Operation)
def test_the_status_is_the_operation_in_progress_or_the_phase(phase: Phase, operation: Operation) -> None:
    shown = status_word(phase, operation)
    assert shown == (STATUS_OF_PHASE[phase] if operation is Operation.NONE else STATUS_OF_OPERATION[operation])


def test_the_tables_are_total() -> None:
    assert STATUS_OF_PHASE.keys() == set(Phase)
    assert STATUS_OF_OPERATION.keys() == set(Operation) - {Operation.NONE}
