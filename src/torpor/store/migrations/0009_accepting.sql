-- A home that is there without a readable marker is accepted as it is: an operation that writes a new marker.

ALTER TABLE workspaces
    DROP CONSTRAINT workspaces_operation_check,
    ADD CONSTRAINT workspaces_operation_check
        CHECK (operation IN ('NONE', 'PROVISIONING', 'RESTORING', 'ACCEPTING', 'STARTING', 'STOPPING', 'ARCHIVING',
                             'CREATE_EMPTY_ARCHIVE', 'DELETING'));
