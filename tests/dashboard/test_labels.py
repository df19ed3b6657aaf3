"""The tables of the dashboard have the keys and rules of the Python source."""

import json
from typing import Any

import pytest

from tests.dashboard.node import APP, node
from torpor.domain.access import GRANTS, NEEDS, Access, Permission, Scope
from torpor.domain.audit import AuditAction
from torpor.domain.records import NOT_OBSERVED
from torpor.domain.states import Operation, Outage, Outcome, Phase, Wish
from torpor.domain.status import STATUS_OF_OPERATION, STATUS_OF_PHASE
from torpor.store.rows import from_conditions

OPERATIONS = set(Operation) - {Operation.NONE}

# Prints the exported tables as JSON, with null for functions.
PRINT_TABLES = """
const names = ["labels", "actions", "status-chart", "outage"];
const modules = await Promise.all(names.map((name) => import(`${process.argv[1]}/${name}.ts`)));
console.log(JSON.stringify(Object.assign({}, ...modules), (_, value) => (typeof value === "function" ? null : value)));
"""


@pytest.fixture(scope="module")
def tables() -> dict[str, Any]:
    printed = node("--input-type=module", "--eval", PRINT_TABLES, str(APP / "src"))
    assert printed.returncode == 0, printed.stderr
    found: dict[str, Any] = json.loads(printed.stdout)
    return found


def test_every_phase_operation_requested_state_and_outcome_has_a_label(tables: dict[str, Any]) -> None:
    assert set(tables["STATUS_OF_PHASE"]) == set(tables["PHASE_SENTENCE"]) == set(tables["ACTIONS"]) == set(Phase)
    assert set(tables["STATUS_OF_OPERATION"]) == set(tables["OPERATION_NAME"]) == set(tables["LEADS"]) == OPERATIONS
    assert set(tables["WISH_LABEL"]) == set(tables["WISHES"]) == set(Wish)
    assert set(tables["OUTCOME_LABEL"]) == set(Outcome)
    assert set(tables["SCOPE_LABEL"]) == set(Scope)
    assert set(tables["OUTAGES"]) == set(Outage)
    assert set(tables["CONDITION_LABEL"]) == set(from_conditions(NOT_OBSERVED))


def test_the_status_words_are_those_of_the_other_interfaces(tables: dict[str, Any]) -> None:
    assert tables["STATUS_OF_PHASE"] == {phase.value: word for phase, word in STATUS_OF_PHASE.items()}
    assert tables["STATUS_OF_OPERATION"] == {operation.value: word for operation, word in STATUS_OF_OPERATION.items()}


def test_every_audit_action_has_a_label(tables: dict[str, Any]) -> None:
    assert set(tables["AUDIT_LABEL"]) == set(AuditAction)


def test_the_buttons_follow_the_access_rules(tables: dict[str, Any]) -> None:
    assert tables["ACCESS"] == [access.name for access in sorted(Access)]
    assert tables["NEEDS"] == {permission.name: needs.name for permission, (needs, _) in NEEDS.items()}
    assert set(tables["PERMISSION_OF"].values()) <= {one.name for one in Permission}
    assert tables["GRANTS"] == {share: access.name for share, access in GRANTS.items()}
