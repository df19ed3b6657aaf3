-- The progress of an operation on a home, in files. Bytes alone do not show the progress of a home with many empty files.

ALTER TABLE workspaces
    -- Of the controller. NULL: the operation in progress does not count files.
    ADD COLUMN progress_files bigint,
    ADD COLUMN progress_files_total bigint;

GRANT UPDATE (progress_files, progress_files_total) ON workspaces TO torpor_controller;

-- The percentage is that of the bytes, or of the files if these are all empty.
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
           after.restored_version, waits_for(after.conditions),
           CASE WHEN after.progress_total > 0 THEN progress_step(after.progress_done, after.progress_total)
                ELSE progress_step(after.progress_files, after.progress_files_total) END)
          IS DISTINCT FROM
          (before.phase, before.operation, before.container_present, before.volume_present, before.location, before.error_info,
           before.desired_state, before.wish_version, before.name, before.deleted_at, before.purge, before.shares, before.sleeps_at,
           before.restored_version, waits_for(before.conditions),
           CASE WHEN before.progress_total > 0 THEN progress_step(before.progress_done, before.progress_total)
                ELSE progress_step(before.progress_files, before.progress_files_total) END);
    IF FOUND THEN
        PERFORM pg_notify('workspace_changes', '');
    END IF;
    RETURN NULL;
END $$;
