"""Comments and docstrings use plain technical English."""

from tools.literary_words import OUR_PATHS, ROOT, count, python_files, rate

LIMIT = 3.0


def test_literary_words_are_rare() -> None:
    """`python -m tools.literary_words --where` shows them."""
    words, literary = 0, 0
    for path in OUR_PATHS:
        for file in python_files(ROOT / path):
            counted, found = count(file)
            words += counted
            literary += len(found)
    assert words > 50_000
    assert rate(literary, words) < LIMIT
