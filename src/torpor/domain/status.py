"""Map phase and operation to the status word that users see, in the command line, the pages and the documents.

JSON, settings, metrics and logs keep the values of the enumerations.
"""

from collections.abc import Mapping

from torpor.domain.states import Operation, Phase

STATUS_OF_PHASE: Mapping[Phase, str] = {
    Phase.PENDING: "Pending",
    Phase.ARCHIVED: "Archived",
    Phase.STANDBY: "Stopped",
    Phase.RUNNING: "Running",
    Phase.ERROR: "Error",
    Phase.DELETING: "Deleting",
    Phase.DELETED: "Deleted",
}

STATUS_OF_OPERATION: Mapping[Operation, str] = {
    Operation.PROVISIONING: "Creating",
    Operation.RESTORING: "Restoring",
    Operation.ACCEPTING: "Recovering",
    Operation.STARTING: "Starting",
    Operation.STOPPING: "Stopping",
    Operation.ARCHIVING: "Archiving",
    Operation.COPYING: "Copying",
    Operation.CREATE_EMPTY_ARCHIVE: "Creating empty archive",
    Operation.DELETING: "Deleting",
}


def status_word(phase: Phase, operation: Operation) -> str:
    """The operation in progress, or else the phase."""
    return STATUS_OF_PHASE[phase] if operation is Operation.NONE else STATUS_OF_OPERATION[operation]
