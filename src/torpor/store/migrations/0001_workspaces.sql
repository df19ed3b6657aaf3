-- Workspaces, their history and their archives, with the invariants as constraints and one writer per column.

-- Roles are the cluster's, not the database's: another installation may have made them, or be making them just now.
DO $$
DECLARE
    role_name text;
BEGIN
    FOREACH role_name IN ARRAY ARRAY['torpor_service', 'torpor_controller'] LOOP
        BEGIN
            IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = role_name) THEN
                EXECUTE format('CREATE ROLE %I NOLOGIN', role_name);
            END IF;
        EXCEPTION WHEN duplicate_object OR unique_violation THEN
            NULL;
        END;
        -- Since 16 whoever creates a role is a member of it, but may not act as it without saying so.
        IF current_setting('server_version_num')::integer < 160000 THEN
            IF NOT pg_has_role(current_user, role_name, 'MEMBER') THEN
                EXECUTE format('GRANT %I TO current_user', role_name);
            END IF;
        ELSIF NOT pg_has_role(current_user, role_name, 'SET') THEN
            EXECUTE format('GRANT %I TO current_user WITH SET TRUE, INHERIT TRUE', role_name);
        END IF;
    END LOOP;
END $$;

CREATE TABLE users (
    id          uuid PRIMARY KEY,
    username    text NOT NULL UNIQUE CHECK (username ~ '^[a-z0-9][a-z0-9._-]{0,63}$'),
    is_admin    boolean NOT NULL DEFAULT false,
    password    text,
    created_at  timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE tokens (
    id          uuid PRIMARY KEY,
    user_id     uuid NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    label       text NOT NULL,
    digest      bytea NOT NULL UNIQUE CHECK (octet_length(digest) = 32),  -- SHA-256; the token itself is never stored
    created_at  timestamptz NOT NULL DEFAULT now(),
    expires_at  timestamptz
);

CREATE TABLE workspaces (
    id                uuid PRIMARY KEY,

    -- What the service writes.
    name              text NOT NULL CHECK (name ~ '^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$' AND name !~ '--'),
    owner_id          uuid NOT NULL REFERENCES users (id),
    template          text NOT NULL,
    command           text[] NOT NULL DEFAULT '{}',
    desired_state     text NOT NULL CHECK (desired_state IN ('RUNNING', 'STANDBY', 'ARCHIVED', 'DELETED')),
    wish_version      bigint NOT NULL DEFAULT 1,
    deleted_at        timestamptz,
    purge             boolean NOT NULL DEFAULT false,
    recover_request   jsonb,
    standby_ttl_s     integer NOT NULL CHECK (standby_ttl_s > 0),
    archive_ttl_s     integer NOT NULL CHECK (archive_ttl_s > 0),
    last_access_at    timestamptz NOT NULL DEFAULT now(),
    created_at        timestamptz NOT NULL DEFAULT now(),

    -- What the controller writes.
    version           bigint NOT NULL DEFAULT 1,
    epoch             bigint NOT NULL DEFAULT 0,
    phase             text NOT NULL DEFAULT 'PENDING'
                      CHECK (phase IN ('PENDING', 'ARCHIVED', 'STANDBY', 'RUNNING', 'ERROR', 'DELETING', 'DELETED')),
    phase_changed_at  timestamptz NOT NULL DEFAULT now(),
    previous_phase    text CHECK (previous_phase IN ('PENDING', 'ARCHIVED', 'STANDBY', 'RUNNING', 'ERROR', 'DELETING', 'DELETED')),
    observed_at       timestamptz,
    conditions        jsonb,
    container_present boolean NOT NULL DEFAULT false,
    volume_present    boolean NOT NULL DEFAULT false,
    operation         text NOT NULL DEFAULT 'NONE'
                      CHECK (operation IN ('NONE', 'PROVISIONING', 'RESTORING', 'STARTING', 'STOPPING', 'ARCHIVING',
                                           'CREATE_EMPTY_ARCHIVE', 'DELETING')),
    stage             text NOT NULL DEFAULT 'REST' CHECK (stage IN ('REST', 'CALL', 'SEE', 'BACKOFF')),
    due_at            timestamptz,
    op_id             uuid,
    op_attempt        integer NOT NULL DEFAULT 0,
    op_epoch          bigint NOT NULL DEFAULT 0,
    op_takeovers      integer NOT NULL DEFAULT 0,
    op_started_at     timestamptz,
    deadline_at       timestamptz,
    progress_done     bigint NOT NULL DEFAULT 0,
    progress_total    bigint,
    generation        integer NOT NULL DEFAULT 0 CHECK (generation >= 0),
    revision          integer NOT NULL DEFAULT 0 CHECK (revision >= 0),
    home_seen         boolean NOT NULL DEFAULT false,
    archive_key       text,
    archive_generation integer,
    archive_revision  integer,
    archive_root      text,
    error_info        jsonb,
    error_count       integer NOT NULL DEFAULT 0,
    quick_ends        integer NOT NULL DEFAULT 0,

    -- Nothing is to be done and nothing is there to be watched: the loop does not even read such a row.
    is_settled boolean NOT NULL GENERATED ALWAYS AS (
        operation = 'NONE'
        AND NOT container_present
        AND NOT volume_present
        AND error_info IS NULL
        AND (phase = desired_state AND phase IN ('ARCHIVED', 'DELETED'))
    ) STORED,

    CONSTRAINT deleted_is_a_wish CHECK ((deleted_at IS NOT NULL) = (desired_state = 'DELETED')),
    CONSTRAINT purged_is_deleted CHECK (NOT purge OR deleted_at IS NOT NULL),
    CONSTRAINT error_has_no_operation CHECK (phase <> 'ERROR' OR operation = 'NONE'),
    CONSTRAINT error_says_why CHECK (phase <> 'ERROR' OR error_info IS NOT NULL),
    CONSTRAINT operation_has_stage CHECK ((operation = 'NONE') = (stage = 'REST')),
    CONSTRAINT operation_has_id CHECK (operation = 'NONE' OR op_id IS NOT NULL),
    CONSTRAINT operation_has_deadline CHECK (operation = 'NONE' OR (deadline_at IS NOT NULL AND op_started_at IS NOT NULL)),
    CONSTRAINT archive_is_whole CHECK (
        num_nulls(archive_key, archive_generation, archive_revision, archive_root) IN (0, 4)
    ),
    CONSTRAINT archive_is_ours CHECK (archive_key IS NULL OR archive_key LIKE id::text || '/%')
);

-- A name is free again once its workspace is deleted.
CREATE UNIQUE INDEX workspaces_name ON workspaces (name) WHERE deleted_at IS NULL;
CREATE INDEX workspaces_of_owner ON workspaces (owner_id, created_at, id);
CREATE INDEX workspaces_unsettled ON workspaces (id) WHERE NOT is_settled;
CREATE INDEX workspaces_counted ON workspaces (owner_id) WHERE desired_state = 'RUNNING' OR container_present;

CREATE TABLE operations (
    workspace_id  uuid NOT NULL REFERENCES workspaces (id) ON DELETE CASCADE,
    op_id         uuid NOT NULL,
    attempt       integer NOT NULL CHECK (attempt > 0),
    kind          text NOT NULL CHECK (kind <> 'NONE'),
    generation    integer NOT NULL,
    epoch         bigint NOT NULL,
    started_at    timestamptz NOT NULL,
    ended_at      timestamptz,
    outcome       text CHECK (outcome IN ('DONE', 'FAILED', 'TURNED', 'ABANDONED')),
    reason        text,
    message       text NOT NULL DEFAULT '',
    done_bytes    bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (workspace_id, op_id, attempt),
    CONSTRAINT ended_has_outcome CHECK ((ended_at IS NULL) = (outcome IS NULL))
);
-- One operation at a time.
CREATE UNIQUE INDEX operations_under_way ON operations (workspace_id) WHERE ended_at IS NULL;
CREATE INDEX operations_in_order ON operations (workspace_id, started_at);

CREATE TABLE archives (
    key            text PRIMARY KEY,
    workspace_id   uuid NOT NULL REFERENCES workspaces (id),
    op_id          uuid NOT NULL,
    generation     integer NOT NULL,
    revision       integer NOT NULL,
    manifest_root  text NOT NULL,
    size_bytes     bigint NOT NULL,
    home_bytes     bigint NOT NULL,
    proven_at      timestamptz NOT NULL,
    orphan_since   timestamptz
);
CREATE INDEX archives_of_workspace ON archives (workspace_id, proven_at);

-- Who leads, and since when. Its epoch fences every write of a controller: one that was deposed writes nothing.
CREATE TABLE system_locks (
    lock_name    text PRIMARY KEY,
    holder_id    text NOT NULL,
    epoch        bigint NOT NULL,
    acquired_at  timestamptz NOT NULL DEFAULT now()
);

-- One writer per column, and the database sees to it.
GRANT USAGE ON SCHEMA public TO torpor_service, torpor_controller;

GRANT SELECT ON ALL TABLES IN SCHEMA public TO torpor_service;
GRANT INSERT, UPDATE, DELETE ON users, tokens TO torpor_service;
GRANT INSERT (id, name, owner_id, template, command, desired_state, standby_ttl_s, archive_ttl_s) ON workspaces TO torpor_service;
GRANT UPDATE (name, desired_state, wish_version, deleted_at, purge, recover_request, standby_ttl_s, archive_ttl_s, last_access_at)
    ON workspaces TO torpor_service;

GRANT SELECT ON workspaces, operations, archives, system_locks TO torpor_controller;
GRANT SELECT (id, username) ON users TO torpor_controller;
GRANT UPDATE (version, epoch, phase, phase_changed_at, previous_phase, observed_at, conditions, container_present, volume_present,
              operation, stage, due_at, op_id, op_attempt, op_epoch, op_takeovers, op_started_at, deadline_at, progress_done,
              progress_total, generation, revision, home_seen, archive_key, archive_generation, archive_revision, archive_root,
              error_info, error_count, quick_ends)
    ON workspaces TO torpor_controller;
GRANT INSERT, UPDATE ON operations, archives, system_locks TO torpor_controller;
