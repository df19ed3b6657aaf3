-- What changed, for whoever follows it: written by the database itself, so that no writer can forget it.

-- Which installation this is. Several may share one Redis, whose channels know no database numbers.
CREATE TABLE installation (
    only_row  boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    id        uuid NOT NULL DEFAULT gen_random_uuid()
);
INSERT INTO installation DEFAULT VALUES;

-- Every event tells the command, so it must not be of any size.
ALTER TABLE workspaces ADD CONSTRAINT command_is_short CHECK (octet_length(array_to_string(command, '')) <= 65536);

-- One row for each change. Whoever commits first need not have the smaller `seq`, so it says nothing to a reader (but of the
-- changes of one workspace: a row is changed by one at a time); the leader gives `event_id` to what it sees committed, one batch
-- in one transaction, so whoever has seen one has seen all below it.
CREATE TABLE outbox (
    seq           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    event_id      bigint UNIQUE,
    workspace_id  uuid NOT NULL,
    owner_id      uuid NOT NULL,
    kind          text NOT NULL CHECK (kind IN ('state_changed', 'error')),
    row           jsonb NOT NULL,  -- the workspace as it was then, without its command, which never changes
    at            timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX outbox_unnumbered ON outbox (seq) WHERE event_id IS NULL;
CREATE INDEX outbox_of_workspace ON outbox (workspace_id, event_id);
CREATE INDEX outbox_of_owner ON outbox (owner_id, event_id);

-- The last id given out, and the last one that is not kept any more. Ids begin at 2, so 0 always asks for everything anew.
CREATE TABLE event_counter (
    only_row   boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    last_id    bigint NOT NULL DEFAULT 1,
    pruned_id  bigint NOT NULL DEFAULT 1,
    CONSTRAINT pruned_was_given_out CHECK (pruned_id <= last_id)
);
INSERT INTO event_counter DEFAULT VALUES;

-- The workspace as it was then. What the stored row does not say (its command, and what came with a later version) is as it is
-- now. Nothing where it cannot be read any more: one such row must not keep all others from everybody.
CREATE FUNCTION as_it_was(present workspaces, stored jsonb) RETURNS workspaces STABLE LANGUAGE plpgsql AS $$
BEGIN
    RETURN jsonb_populate_record(present, stored);
EXCEPTION WHEN data_exception THEN
    RETURN NULL;
END $$;

-- How far something under way is, in steps that are worth telling: 5 %.
CREATE FUNCTION progress_step(done bigint, total bigint) RETURNS bigint IMMUTABLE LANGUAGE sql AS $$
    SELECT least(20, done * 20 / nullif(total, 0))
$$;

-- The writers may not write the outbox themselves, so this runs as its owner. A transaction that changed much notifies once:
-- PostgreSQL folds what is equal.
CREATE FUNCTION tell_created() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
    INSERT INTO outbox (workspace_id, owner_id, kind, row)
    SELECT created.id, created.owner_id, 'state_changed', to_jsonb(created) - 'command' FROM created;
    IF FOUND THEN
        PERFORM pg_notify('workspace_changes', '');
    END IF;
    RETURN NULL;
END $$;

-- Only what somebody who looks on would see; neither access times nor claims nor what is due.
CREATE FUNCTION tell_changed() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
    INSERT INTO outbox (workspace_id, owner_id, kind, row)
    SELECT after.id, after.owner_id,
           CASE WHEN after.error_info IS NOT NULL AND after.error_info IS DISTINCT FROM before.error_info
                THEN 'error' ELSE 'state_changed' END,
           to_jsonb(after) - 'command'
    FROM after JOIN before USING (id)
    WHERE (after.phase, after.operation, after.container_present, after.volume_present, after.error_info,
           after.desired_state, after.wish_version, after.name, after.deleted_at, after.purge,
           progress_step(after.progress_done, after.progress_total))
          IS DISTINCT FROM
          (before.phase, before.operation, before.container_present, before.volume_present, before.error_info,
           before.desired_state, before.wish_version, before.name, before.deleted_at, before.purge,
           progress_step(before.progress_done, before.progress_total));
    IF FOUND THEN
        PERFORM pg_notify('workspace_changes', '');
    END IF;
    RETURN NULL;
END $$;

CREATE TRIGGER tell_created AFTER INSERT ON workspaces
    REFERENCING NEW TABLE AS created FOR EACH STATEMENT EXECUTE FUNCTION tell_created();
CREATE TRIGGER tell_changed AFTER UPDATE ON workspaces
    REFERENCING OLD TABLE AS before NEW TABLE AS after FOR EACH STATEMENT EXECUTE FUNCTION tell_changed();

GRANT SELECT ON installation, outbox, event_counter TO torpor_service, torpor_controller;
GRANT UPDATE (event_id), DELETE ON outbox TO torpor_controller;
GRANT UPDATE (last_id, pruned_id) ON event_counter TO torpor_controller;
