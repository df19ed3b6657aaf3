"""Is every story that the documents point to really told?"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
DOCUMENTS = sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "ARCHITECTURE.md", ROOT / "README.md"])
STORY = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_test_that_the_documents_name_exists(document: Path) -> None:
    missing = [
        f"{file}::{test}"
        for file, test in STORY.findall(document.read_text(encoding="utf-8"))
        if not (ROOT / file).is_file() or (test and f"def {test}(" not in (ROOT / file).read_text(encoding="utf-8"))
    ]
    assert missing == []


def test_the_sort_document_names_tests() -> None:
    assert len(STORY.findall((ROOT / "docs/explanation/sort.md").read_text(encoding="utf-8"))) > 40
