-- Where the agent of a workspace's running container listens, written by the controller: API and proxy do not ask the engine.
-- NULL: no container runs, or it is reached only through the process of its controller.
ALTER TABLE workspaces
    ADD COLUMN location jsonb,
    ADD CONSTRAINT location_is_a_short_object CHECK (jsonb_typeof(location) = 'object' AND octet_length(location::text) <= 1024);
GRANT UPDATE (location) ON workspaces TO torpor_controller;

-- A container at another address is news for the proxies.
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
           waits_for(after.conditions), progress_step(after.progress_done, after.progress_total))
          IS DISTINCT FROM
          (before.phase, before.operation, before.container_present, before.volume_present, before.location, before.error_info,
           before.desired_state, before.wish_version, before.name, before.deleted_at, before.purge, before.shares, before.sleeps_at,
           waits_for(before.conditions), progress_step(before.progress_done, before.progress_total));
    IF FOUND THEN
        PERFORM pg_notify('workspace_changes', '');
    END IF;
    RETURN NULL;
END $$;

-- The last lines of containers that were removed: neither the API nor another controller can ask for them any more.
CREATE TABLE kept_logs (
    workspace_id  uuid PRIMARY KEY REFERENCES workspaces (id) ON DELETE CASCADE,
    lines         bytea NOT NULL CHECK (octet_length(lines) <= 65536),
    kept_at       timestamptz NOT NULL DEFAULT clock_timestamp()
);
GRANT SELECT, INSERT, UPDATE, DELETE ON kept_logs TO torpor_controller;
GRANT SELECT ON kept_logs TO torpor_service;
