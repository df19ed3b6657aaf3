-- Who keeps a workspace awake, and who asked for what it does.

ALTER TABLE workspaces
    ADD COLUMN wish_origin text NOT NULL DEFAULT 'PERSON' CHECK (wish_origin IN ('PERSON', 'IDLE', 'WAKE')),
    ADD COLUMN wished_at timestamptz NOT NULL DEFAULT now();
-- Until now every wish moved it.
UPDATE workspaces SET wished_at = last_access_at;

-- A reason to stay awake that somebody gave (`torpor hold`), and until when it counts.
CREATE TABLE work_leases (
    id            uuid PRIMARY KEY,
    workspace_id  uuid NOT NULL REFERENCES workspaces (id) ON DELETE CASCADE,
    reason        text NOT NULL CHECK (char_length(reason) BETWEEN 1 AND 200),
    created_by    text NOT NULL,
    created_at    timestamptz NOT NULL DEFAULT now(),
    expires_at    timestamptz NOT NULL CHECK (expires_at > created_at)
);
CREATE INDEX work_leases_of_workspace ON work_leases (workspace_id, expires_at);

-- Whose time is up, in the order in which it was: the others are not even read. (In UTC, because adding to a time with a
-- time zone depends on the session's, and an index must not.)
CREATE INDEX workspaces_standby_due ON workspaces
    (((greatest(last_access_at, phase_changed_at, wished_at) AT TIME ZONE 'UTC') + make_interval(secs => standby_ttl_s)), id)
    WHERE phase = 'RUNNING' AND desired_state = 'RUNNING' AND operation = 'NONE';
CREATE INDEX workspaces_archive_due ON workspaces
    (((greatest(last_access_at, phase_changed_at) AT TIME ZONE 'UTC') + make_interval(secs => archive_ttl_s)), id)
    WHERE phase = 'STANDBY' AND desired_state = 'STANDBY' AND operation = 'NONE';

-- By its name among the living and the dead; and all that there are, a page after the other, without those that are gone.
CREATE INDEX workspaces_by_name ON workspaces (name);
CREATE INDEX workspaces_in_order ON workspaces (created_at, id) WHERE phase <> 'DELETED';

GRANT SELECT, INSERT, DELETE ON work_leases TO torpor_service;
GRANT UPDATE (wish_origin, wished_at) ON workspaces TO torpor_service;
