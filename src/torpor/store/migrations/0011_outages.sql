-- The beginning and the end of an outage are told like any other change: once each, however often it is tried meanwhile.

-- What the workspace waits for and cannot be reached (`torpor.domain.states.Outage`), or NULL.
CREATE FUNCTION outage_of(conditions jsonb) RETURNS text IMMUTABLE LANGUAGE sql AS $$
    SELECT CASE WHEN conditions -> 'policy.healthy' ->> 'reason' IN ('ArchiveStoreOut', 'RuntimeOut')
                THEN conditions -> 'policy.healthy' ->> 'reason' END
$$;

-- Runs after `tell_changed`, in the order of their names, and leaves out what that has told already: every write of a controller
-- has a version of its own.
CREATE FUNCTION tell_outage() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
    INSERT INTO outbox (workspace_id, owner_id, kind, row)
    SELECT after.id, after.owner_id, 'state_changed', to_jsonb(after) - 'command'
    FROM after JOIN before USING (id)
    WHERE after.version > before.version
      AND outage_of(after.conditions) IS DISTINCT FROM outage_of(before.conditions)
      AND NOT EXISTS (
          SELECT FROM outbox WHERE workspace_id = after.id AND event_id IS NULL AND ("row" -> 'version')::bigint = after.version
      );
    IF FOUND THEN
        PERFORM pg_notify('workspace_changes', '');
    END IF;
    RETURN NULL;
END $$;

CREATE TRIGGER tell_outage AFTER UPDATE ON workspaces
    REFERENCING OLD TABLE AS before NEW TABLE AS after FOR EACH STATEMENT EXECUTE FUNCTION tell_outage();
