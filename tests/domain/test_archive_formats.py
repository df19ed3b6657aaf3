"""A format is written only if every controller can read it."""

from itertools import product

from torpor.domain.archive_formats import SUPPORTED_FORMATS, written_format
from torpor.settings import Settings


def test_the_newest_format_that_all_members_support_is_written() -> None:
    for newest, *members in product((1, 2), ((1,), (1, 2)), ((1,), (1, 2)), ((1,), (1, 2))):
        is_second = newest == 2 and all(2 in one for one in members)
        assert written_format(members, newest) == (2 if is_second else 1)
    assert written_format([], 2) == 2


def test_this_version_supports_what_it_writes() -> None:
    assert Settings.model_fields["archive_format"].default in SUPPORTED_FORMATS
