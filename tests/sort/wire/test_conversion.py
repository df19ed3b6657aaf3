"""Every record is the same after conversion to a message and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sort.wire.records import CROSSES
from torpor.sort.errors import SortRefused
from torpor.sort.machine.records import Goal, GoalStage
from torpor.sort.machine.states import WorkerPhase
from torpor.sort.wire import conversion
from torpor.sort.wire import sort_pb2 as pb
from torpor.sort.wire.calls import METHODS, PACKAGE, CallKind
from torpor.sort.wire.conversion import PHASE_TO_WIRE, STAGE_TO_WIRE
from torpor.sort.wire.requests import Abort, WorkerRef


@pytest.mark.parametrize(("codec", "records"), CROSSES, ids=[codec.message.__name__ for codec, _ in CROSSES])
def test_round_trip(codec: conversion.Codec[object, pb.Goal], records: st.SearchStrategy[object]) -> None:
    @given(records)
    def holds(record: object) -> None:
        assert codec.from_bytes(codec.to_bytes(record)) == record

    holds()


def test_every_message_of_a_call_is_among_the_records() -> None:
    crossing = {codec.message for codec, _ in CROSSES}
    assert crossing == {method.request.message for method in METHODS} | {method.answer.message for method in METHODS}


def test_the_table_of_calls_is_the_protos() -> None:
    file = pb.DESCRIPTOR
    assert file.package == PACKAGE
    declared = {
        (service.name, method.name, method.input_type.name, method.output_type.name, method.client_streaming)
        for service in file.services_by_name.values()
        for method in service.methods
    }
    assert declared == {
        (each.service, each.name, each.request.message.__name__, each.answer.message.__name__, each.kind is CallKind.PART)
        for each in METHODS
    }


def test_phases_and_stages_are_the_protos() -> None:
    assert {f"PHASE_{phase.value}": PHASE_TO_WIRE[phase] for phase in WorkerPhase} | {"PHASE_UNKNOWN": 0} == dict(
        pb.Phase.items()
    )
    assert {f"STAGE_{stage.value}": STAGE_TO_WIRE[stage] for stage in GoalStage} | {"STAGE_UNKNOWN": 0} == dict(
        pb.Stage.items()
    )


def test_an_invalid_message_is_refused() -> None:
    with pytest.raises(SortRefused, match="this is not a valid Goal") as refused:
        conversion.GOAL.from_bytes(b"\xff\xff\xff")
    assert refused.value.code == "malformed"


def test_a_stage_from_a_later_version_is_refused_and_not_guessed() -> None:
    for number in (0, 99):
        with pytest.raises(SortRefused, match="this is not a valid Goal"):
            conversion.GOAL.from_bytes(pb.Goal(stage=number).SerializeToString())  # type: ignore[arg-type]


def test_a_report_without_a_kind_is_refused() -> None:
    with pytest.raises(SortRefused, match="ReportPhaseCompleteRequest"):
        conversion.REPORT_PHASE_COMPLETE.from_bytes(b"")


def test_a_reason_with_an_undecodable_file_name_can_be_sent() -> None:
    reason = b"/data/caf\xe9 cannot be read".decode("utf-8", "surrogateescape")
    told = conversion.ABORT.from_bytes(conversion.ABORT.to_bytes(Abort(WorkerRef(), reason)))
    assert told.reason == "/data/caf\\udce9 cannot be read"


def test_an_empty_goal_stays_empty() -> None:
    assert conversion.GOAL.from_bytes(conversion.GOAL.to_bytes(Goal(GoalStage.REGISTER))) == Goal(GoalStage.REGISTER)
