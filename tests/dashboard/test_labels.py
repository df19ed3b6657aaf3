"""Does the dashboard know every word of the product, and the same rules about who may what?"""

import json
from typing import Any

import pytest

from tests.dashboard.node import APP, node
from torpor.domain.access import GRANTS, NEEDS, Access, Permission, Scope
from torpor.domain.audit import AuditAction
from torpor.domain.records import NOT_OBSERVED
from torpor.domain.states import Operation, Outage, Outcome, Phase, Wish
from torpor.store.rows import from_conditions

OPERATIONS = set(Operation) - {Operation.NONE}

# Tables are told as they are, functions as null.
TELL = """
const names = ["labels", "actions", "status-chart", "outage"];
const modules = await Promise.all(names.map((name) => import(`${process.argv[1]}/${name}.ts`)));
console.log(JSON.stringify(Object.assign({}, ...modules), (_, value) => (typeof value === "function" ? null : value)));
"""


@pytest.fixture(scope="module")
def tables() -> dict[str, Any]:
    told = node("--input-type=module", "--eval", TELL, str(APP / "src"))
    assert told.returncode == 0, told.stderr
    found: dict[str, Any] = json.loads(told.stdout)
    return found


def test_every_phase_operation_wish_and_outcome_has_words(tables: dict[str, Any]) -> None:
    assert set(tables["PHASE_SAYS"]) == set(tables["PHASE_MEANS"]) == set(tables["ACTIONS"]) == set(Phase)
    assert set(tables["OPERATION_SAYS"]) == set(tables["OPERATION_NAME"]) == set(tables["LEADS"]) == OPERATIONS
    assert set(tables["WISH_SAYS"]) == set(tables["WISHES"]) == set(Wish)
    assert set(tables["OUTCOME_SAYS"]) == set(Outcome)
    assert set(tables["SCOPE_SAYS"]) == set(Scope)
    assert set(tables["OUTAGES"]) == set(Outage)
    assert set(tables["CONDITION_SAYS"]) == set(from_conditions(NOT_OBSERVED))


def test_everything_that_is_written_down_can_be_told(tables: dict[str, Any]) -> None:
    assert set(tables["DEED_SAYS"]) == set(AuditAction)


def test_the_buttons_go_by_the_rules_of_access(tables: dict[str, Any]) -> None:
    assert tables["ACCESS"] == [access.name for access in sorted(Access)]
    assert tables["NEEDS"] == {deed.name: needs.name for deed, (needs, _) in NEEDS.items()}
    assert set(tables["DEED_OF"].values()) <= {deed.name for deed in Permission}
    assert tables["GRANTS"] == {share: access.name for share, access in GRANTS.items()}
