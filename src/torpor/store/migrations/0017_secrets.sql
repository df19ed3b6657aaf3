-- The secrets of workspaces, encrypted with a key that is not in the database. In a table of their own: every change of a
-- workspace's row is copied into an event.
CREATE TABLE secrets (
    workspace_id  uuid NOT NULL REFERENCES workspaces (id) ON DELETE CASCADE,
    name          text NOT NULL CHECK (name ~ '^[A-Za-z_][A-Za-z0-9_]*$' AND char_length(name) <= 255),
    sealed        bytea NOT NULL CHECK (octet_length(sealed) <= 262144),
    key_id        text NOT NULL,             -- identifies the key, and does not reveal it
    value_bytes   integer NOT NULL CHECK (value_bytes > 0),
    set_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (workspace_id, name)
);

-- The service writes values and cannot read them again; the controller reads them for a start, and removes those of workspaces
-- that can no longer be undeleted.
GRANT INSERT, DELETE ON secrets TO torpor_service;
GRANT SELECT (workspace_id, name, key_id, value_bytes, set_at) ON secrets TO torpor_service;
GRANT SELECT, DELETE ON secrets TO torpor_controller;
