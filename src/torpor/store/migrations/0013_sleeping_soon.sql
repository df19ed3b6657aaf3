-- Users are warned before a workspace is stopped because it is not in use.

-- When it is going to be stopped, once that is near; null while it is not. Written by the idle watch.
ALTER TABLE workspaces ADD COLUMN sleeps_at timestamptz;

-- How long before a stop users are warned: five minutes, or a third of the TTL if that is shorter (`domain/warning.py`).
CREATE FUNCTION warning_s(standby_ttl_s integer) RETURNS double precision IMMUTABLE LANGUAGE sql AS $$
    SELECT least(300::double precision, standby_ttl_s / 3::double precision)
$$;

-- From when on users are warned if it is not used again. In UTC, because adding to a time with a time zone depends on the session's,
-- and an index must not; with its schema, because an index is built without a search path.
CREATE FUNCTION warned_from(
    last_access_at timestamptz, phase_changed_at timestamptz, wished_at timestamptz, standby_ttl_s integer
) RETURNS timestamp IMMUTABLE LANGUAGE sql AS $$
    SELECT (greatest(last_access_at, phase_changed_at, wished_at) AT TIME ZONE 'UTC')
           + make_interval(secs => standby_ttl_s - public.warning_s(standby_ttl_s))
$$;

-- The idle watch reads those that are to be warned as well as those whose time is up, in this order.
DROP INDEX workspaces_standby_due;
CREATE INDEX workspaces_standby_due ON workspaces
    (warned_from(last_access_at, phase_changed_at, wished_at, standby_ttl_s), id)
    WHERE phase = 'RUNNING' AND desired_state = 'RUNNING' AND operation = 'NONE';

-- The idle watch does not read a row that has left this order, so the write that moves it takes the warning back: it is used again,
-- wished anew, stopped, or in trouble.
CREATE FUNCTION take_warning_back() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.sleeps_at := NULL;
    RETURN NEW;
END $$;
CREATE TRIGGER take_warning_back BEFORE UPDATE ON workspaces
    FOR EACH ROW
    WHEN (NEW.sleeps_at IS NOT NULL AND (
        NEW.phase <> 'RUNNING' OR NEW.desired_state <> 'RUNNING' OR NEW.operation <> 'NONE' OR NEW.error_info IS NOT NULL
        OR NEW.wish_version <> OLD.wish_version
        OR warned_from(NEW.last_access_at, NEW.phase_changed_at, NEW.wished_at, NEW.standby_ttl_s) > now() AT TIME ZONE 'UTC'
    ))
    EXECUTE FUNCTION take_warning_back();

ALTER TABLE outbox
    DROP CONSTRAINT outbox_kind_check,
    ADD CONSTRAINT outbox_kind_check CHECK (kind IN ('state_changed', 'error', 'sleeping_soon'));

-- As before, and a warning is an event of its own kind; that it is taken back is an ordinary change, as is what it waits for.
CREATE OR REPLACE FUNCTION tell_changed() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
    INSERT INTO outbox (workspace_id, owner_id, kind, row)
    SELECT after.id, after.owner_id,
           CASE WHEN after.error_info IS NOT NULL AND after.error_info IS DISTINCT FROM before.error_info THEN 'error'
                WHEN after.sleeps_at IS NOT NULL AND after.sleeps_at IS DISTINCT FROM before.sleeps_at THEN 'sleeping_soon'
                ELSE 'state_changed' END,
           (to_jsonb(after) - 'command')
               -- Whoever it is no longer shared with hears nothing of it any more, so this tells that they must look anew.
               || CASE WHEN before.shares <> after.shares THEN jsonb_build_object('unshared', to_jsonb(ARRAY(
                      SELECT jsonb_object_keys(before.shares) EXCEPT SELECT jsonb_object_keys(after.shares)
                  ))) ELSE '{}' END
    FROM after JOIN before USING (id)
    WHERE (after.phase, after.operation, after.container_present, after.volume_present, after.error_info,
           after.desired_state, after.wish_version, after.name, after.deleted_at, after.purge, after.shares, after.sleeps_at,
           waits_for(after.conditions), progress_step(after.progress_done, after.progress_total))
          IS DISTINCT FROM
          (before.phase, before.operation, before.container_present, before.volume_present, before.error_info,
           before.desired_state, before.wish_version, before.name, before.deleted_at, before.purge, before.shares, before.sleeps_at,
           waits_for(before.conditions), progress_step(before.progress_done, before.progress_total));
    IF FOUND THEN
        PERFORM pg_notify('workspace_changes', '');
    END IF;
    RETURN NULL;
END $$;

GRANT UPDATE (sleeps_at) ON workspaces TO torpor_service;
