-- What each home takes on its disk, as it was last measured: of which generation, and when the measuring began.

ALTER TABLE workspaces
    ADD COLUMN disk_bytes bigint CHECK (disk_bytes >= 0),
    ADD COLUMN disk_generation integer,
    ADD COLUMN disk_measured_at timestamptz,
    ADD CONSTRAINT disk_use_is_whole CHECK (num_nulls(disk_bytes, disk_generation, disk_measured_at) IN (0, 3));
CREATE INDEX workspaces_with_volumes ON workspaces (disk_measured_at) WHERE volume_present;
GRANT UPDATE (disk_bytes, disk_generation, disk_measured_at) ON workspaces TO torpor_controller;

-- Workspaces that begin or cease to wait for disk space are told of, too. What changes besides is told by `tell_changed`.
CREATE FUNCTION waits_for_disk(conditions jsonb) RETURNS boolean IMMUTABLE LANGUAGE sql AS $$
    SELECT coalesce(conditions #>> '{policy.healthy,reason}' = 'DiskLow', false)
        OR coalesce(conditions #>> '{infra.container_ready,reason}' = 'Paused', false)
$$;
CREATE FUNCTION tell_disk() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
    INSERT INTO outbox (workspace_id, owner_id, kind, row)
    SELECT after.id, after.owner_id, 'state_changed', to_jsonb(after) - 'command'
    FROM after JOIN before USING (id)
    WHERE waits_for_disk(after.conditions) <> waits_for_disk(before.conditions)
      AND (after.phase, after.operation, after.container_present, after.volume_present, after.error_info, after.wish_version)
          IS NOT DISTINCT FROM
          (before.phase, before.operation, before.container_present, before.volume_present, before.error_info,
           before.wish_version);
    IF FOUND THEN
        PERFORM pg_notify('workspace_changes', '');
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER tell_disk AFTER UPDATE ON workspaces
    REFERENCING OLD TABLE AS before NEW TABLE AS after FOR EACH STATEMENT EXECUTE FUNCTION tell_disk();
