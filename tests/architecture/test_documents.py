"""The decision records have a date, a status and a number."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("0*.md"))
SUPERSEDED = {6, 7}


def test_every_decision_has_its_date_and_status() -> None:
    assert DECISIONS
    for path in DECISIONS:
        told = re.fullmatch(r"Date: \d{4}-\d\d-\d\d · Status: (accepted|superseded by .+)", path.read_text().splitlines()[2])
        assert told, path.name
        assert told[1].startswith("superseded") is (int(path.name[:4]) in SUPERSEDED), path.name


def test_decisions_are_numbered_without_gaps_and_name_their_number() -> None:
    assert [int(path.name[:4]) for path in DECISIONS] == list(range(1, len(DECISIONS) + 1))
    for path in DECISIONS:
        assert re.match(rf"# {int(path.name[:4])}\. ", path.read_text()), path.name
