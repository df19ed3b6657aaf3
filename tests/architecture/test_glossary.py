"""The glossary defines the words of this project that a reader cannot look up elsewhere, and every phase and operation."""

import re
from pathlib import Path

from torpor.domain.status import STATUS_OF_OPERATION, STATUS_OF_PHASE

GLOSSARY = (Path(__file__).parents[2] / "docs" / "glossary.md").read_text(encoding="utf-8")
OWN_WORDS = {
    *("wish", "marker", "generation", "revision", "epoch", "fence", "latch"),
    *("shard", "term", "duty", "hint", "dice", "knock", "gate", "kit"),
}


def test_the_glossary_defines_our_words_once() -> None:
    defined = re.findall(r"^\| ([a-z ,]+) \|", GLOSSARY, re.MULTILINE)
    words = [word.strip() for entry in defined for word in entry.split(",")]
    assert OWN_WORDS - set(words) == set()
    assert [word for word in OWN_WORDS if words.count(word) > 1] == []


def test_the_glossary_has_the_status_of_every_phase_and_operation() -> None:
    phases = [f"| {word} | `{phase}` |" for phase, word in STATUS_OF_PHASE.items()]
    operations = [f"| {word} | operation `{operation}` |" for operation, word in STATUS_OF_OPERATION.items()]
    assert [row for row in [*phases, *operations] if row not in GLOSSARY] == []
