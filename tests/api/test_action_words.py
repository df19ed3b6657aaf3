"""Every possible action has a command and a meaning."""

import string

from torpor.api.action_words import COMMANDS, MEANINGS, command_of, meaning_of
from torpor.domain.explain import ActionVerb, PossibleAction


def test_every_action_has_words() -> None:
    assert COMMANDS.keys() == MEANINGS.keys() == set(ActionVerb)


def test_every_command_names_the_workspace_and_only_a_restore_names_an_archive() -> None:
    for verb, command in COMMANDS.items():
        fields = {field for _, field, _, _ in string.Formatter().parse(command) if field}
        assert fields == {"name"} | ({"archive_key"} if verb is ActionVerb.RESTORE_ARCHIVE else set())


def test_an_action_becomes_a_command_and_its_meaning() -> None:
    restore = PossibleAction(ActionVerb.RESTORE_ARCHIVE, "w/1")
    assert command_of(restore, "demo") == "torpor recover demo --archive-key w/1"
    assert meaning_of(restore) == "continue with this older archive"
