-- Going back to an older archive, and workspaces that begin as a copy of an archive of another one.

ALTER TABLE workspaces
    -- Of the service: the last request to replace the home by an older archive, with the wish_version that made it.
    ADD COLUMN restore_request jsonb,
    -- Of the controller: the wish_version of the last such request that it executed.
    ADD COLUMN restored_version bigint NOT NULL DEFAULT 0,
    -- Of the service: the archive of another workspace that the first home is a copy of.
    ADD COLUMN fork_source jsonb,
    -- Both depend on whether a restore is open: then there is something to do, also at the requested state.
    DROP COLUMN is_settled,
    DROP COLUMN look_after,
    DROP CONSTRAINT workspaces_operation_check,
    ADD CONSTRAINT workspaces_operation_check
        CHECK (operation IN ('NONE', 'PROVISIONING', 'RESTORING', 'ACCEPTING', 'STARTING', 'STOPPING', 'ARCHIVING', 'COPYING',
                             'CREATE_EMPTY_ARCHIVE', 'DELETING'));
ALTER TABLE workspaces
    ADD COLUMN is_settled boolean NOT NULL GENERATED ALWAYS AS (
        operation = 'NONE'
        AND NOT container_present
        AND NOT volume_present
        AND error_info IS NULL
        AND (phase = desired_state AND phase IN ('ARCHIVED', 'DELETED'))
        AND coalesce((restore_request ->> 'wish_version')::bigint <= restored_version, true)
    ) STORED,
    ADD COLUMN look_after timestamptz NOT NULL GENERATED ALWAYS AS (
        CASE
            WHEN operation = 'NONE' AND due_at IS NULL AND error_info IS NULL AND phase = desired_state
                 AND coalesce((restore_request ->> 'wish_version')::bigint <= restored_version, true)
                THEN timestamptz 'infinity'
            WHEN operation = 'NONE' AND (error_info ->> 'is_terminal')::boolean
                 AND (error_info ->> 'wish_version')::bigint >= wish_version
                THEN timestamptz 'infinity'
            WHEN stage = 'BACKOFF' AND (error_info ->> 'wish_version')::bigint >= wish_version
                THEN least(due_at, deadline_at)
            ELSE timestamptz '-infinity'
        END
    ) STORED;
CREATE INDEX workspaces_watched ON workspaces (shard) WHERE NOT is_settled;
CREATE INDEX workspaces_due ON workspaces (shard, look_after) WHERE look_after < 'infinity';

-- The copies that are not made yet: garbage collection keeps their sources.
CREATE INDEX workspaces_to_copy ON workspaces ((fork_source ->> 'workspace_id'))
    WHERE fork_source IS NOT NULL AND archive_key IS NULL AND generation = 0;

GRANT INSERT (fork_source), UPDATE (restore_request) ON workspaces TO torpor_service;
GRANT UPDATE (restored_version) ON workspaces TO torpor_controller;

-- A copy that was not finished is left over, like an archive.
CREATE OR REPLACE FUNCTION is_left_over(workspace workspaces, made_by uuid) RETURNS boolean STABLE LANGUAGE sql AS $$
    SELECT workspace.op_id IS DISTINCT FROM made_by
       AND workspace.archive_key IS DISTINCT FROM workspace.id::text || '/' || made_by::text
       AND coalesce(bool_and(ended_at IS NOT NULL AND kind IN ('ARCHIVING', 'COPYING', 'CREATE_EMPTY_ARCHIVE')), false)
    FROM operations WHERE workspace_id = workspace.id AND op_id = made_by
$$;

CREATE OR REPLACE FUNCTION is_left_over_pack(workspace workspaces, made_by uuid) RETURNS boolean STABLE LANGUAGE sql AS $$
    SELECT workspace.op_id IS DISTINCT FROM made_by
       AND (workspace.archive_key IS DISTINCT FROM workspace.id::text || '/' || made_by::text OR EXISTS (
               SELECT FROM archives WHERE key = workspace.archive_key AND proven_at IS NOT NULL
           ))
       AND coalesce(bool_and(ended_at IS NOT NULL AND kind IN ('ARCHIVING', 'COPYING', 'CREATE_EMPTY_ARCHIVE')), false)
    FROM operations WHERE workspace_id = workspace.id AND op_id = made_by
$$;

-- That an older archive replaced the home is news.
CREATE OR REPLACE FUNCTION tell_changed() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
    INSERT INTO outbox (workspace_id, owner_id, kind, row)
    SELECT after.id, after.owner_id,
           CASE WHEN after.error_info IS NOT NULL AND after.error_info IS DISTINCT FROM before.error_info THEN 'error'
                WHEN after.sleeps_at IS NOT NULL AND after.sleeps_at IS DISTINCT FROM before.sleeps_at THEN 'sleeping_soon'
                ELSE 'state_changed' END,
           (to_jsonb(after) - 'command' - 'environment')
               -- A user whose share has ended gets no further events of the workspace, so this event tells them to read again.
               || CASE WHEN before.shares <> after.shares THEN jsonb_build_object('unshared', to_jsonb(ARRAY(
                      SELECT jsonb_object_keys(before.shares) EXCEPT SELECT jsonb_object_keys(after.shares)
                  ))) ELSE '{}' END
    FROM after JOIN before USING (id)
    WHERE (after.phase, after.operation, after.container_present, after.volume_present, after.location, after.error_info,
           after.desired_state, after.wish_version, after.name, after.deleted_at, after.purge, after.shares, after.sleeps_at,
           after.restored_version, waits_for(after.conditions), progress_step(after.progress_done, after.progress_total))
          IS DISTINCT FROM
          (before.phase, before.operation, before.container_present, before.volume_present, before.location, before.error_info,
           before.desired_state, before.wish_version, before.name, before.deleted_at, before.purge, before.shares, before.sleeps_at,
           before.restored_version, waits_for(before.conditions), progress_step(before.progress_done, before.progress_total));
    IF FOUND THEN
        PERFORM pg_notify('workspace_changes', '');
    END IF;
    RETURN NULL;
END $$;
