"""Word each possible action of an explanation: the command that does it, and what it means."""

from collections.abc import Mapping

from torpor.domain.explain import ActionVerb, PossibleAction

COMMANDS: Mapping[ActionVerb, str] = {
    ActionVerb.START: "torpor start {name}",
    ActionVerb.STOP: "torpor stop {name}",
    ActionVerb.ARCHIVE: "torpor archive {name}",
    ActionVerb.KEEP_AWAKE: "torpor hold {name} --for 1h --reason 'still needed'",
    ActionVerb.RETRY: "torpor recover {name}",
    ActionVerb.ACCEPT_HOME: "torpor recover {name} --accept",
    ActionVerb.RESTORE_ARCHIVE: "torpor recover {name} --archive-key {archive_key}",
    ActionVerb.CREATE_EMPTY_HOME: "torpor recover {name} --empty",
    ActionVerb.DELETE: "torpor delete {name}",
    ActionVerb.RETRY_DELETE: "torpor delete {name}",
    ActionVerb.PURGE: "torpor delete {name} --purge",
    ActionVerb.UNDELETE: "torpor undelete {name}",
    ActionVerb.CANCEL_RESTORE: "torpor restore {name} --cancel",
}

MEANINGS: Mapping[ActionVerb, str] = {
    ActionVerb.START: "start it",
    ActionVerb.STOP: "stop it and keep its home on disk",
    ActionVerb.ARCHIVE: "stop it and move its home to the archive",
    ActionVerb.KEEP_AWAKE: "keep it awake for 1 hour",
    ActionVerb.RETRY: "clear the error and try again",
    ActionVerb.ACCEPT_HOME: "continue with the home as it is",
    ActionVerb.RESTORE_ARCHIVE: "continue with this older archive",
    ActionVerb.CREATE_EMPTY_HOME: "continue with an empty home",
    ActionVerb.DELETE: "delete it; you can undelete it for a limited time",
    ActionVerb.RETRY_DELETE: "try to archive and delete it again",
    ActionVerb.PURGE: "delete it with its home and all its archives; this cannot be undone",
    ActionVerb.UNDELETE: "keep it; its status is then Archived",
    ActionVerb.CANCEL_RESTORE: "keep the present home and withdraw the restore",
}


def command_of(action: PossibleAction, name: str) -> str:
    return COMMANDS[action.verb].format(name=name, archive_key=action.archive_key)


def meaning_of(action: PossibleAction) -> str:
    return MEANINGS[action.verb]
