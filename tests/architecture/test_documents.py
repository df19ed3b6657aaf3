"""Do the documents that people write by hand agree with the source?"""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("0*.md"))
SUPERSEDED = {6, 7}


def test_the_layer_table_is_the_import_contract() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(one["layers"] for one in contracts if one["type"] == "layers" and "torpor.cli" in one["layers"][0])
    agreed = [{name.strip().removeprefix("torpor.") for name in layer.split("|")} for layer in layers]
    section = (ROOT / "ARCHITECTURE.md").read_text().split("## The layers")[1].split("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    assert [{name.removesuffix(".py") for name in re.findall(r"`([^`]+)`", row)} for row in rows] == agreed


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
