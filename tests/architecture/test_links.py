"""Relative links of the documents lead to files and headings that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "bench").glob("*.md")])
LINK = re.compile(r"\]\(([^)\s]+)\)")
ELSEWHERE = ("http://", "https://", "mailto:")


def anchors(document: Path) -> set[str]:
    """Of its headings, as GitHub forms them."""
    headings = re.findall(r"^#+ (.*)$", document.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


def is_dead(document: Path, link: str) -> bool:
    file, _, anchor = link.partition("#")
    target = document.parent / file if file else document
    return not target.exists() or (target.suffix == ".md" and anchor != "" and anchor not in anchors(target))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_link_is_dead(document: Path) -> None:
    links = [link for link in LINK.findall(document.read_text(encoding="utf-8")) if not link.startswith(ELSEWHERE)]
    assert [link for link in links if is_dead(document, link)] == []
