-- Any number of controllers, each with one row that says it lives; one of them leads.

-- One life of a controller. Its epoch is its name for good: one that expired is dead, and comes back as another life.
CREATE TABLE controllers (
    epoch        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    node_id      text NOT NULL,
    -- What it sees: controllers of different worlds must not share a database.
    world        text NOT NULL,
    started_at   timestamptz NOT NULL DEFAULT now(),
    expires_at   timestamptz NOT NULL
);

-- Workspaces are handed out in 1,024 shards: the last ten bits of their id. `held_by` is the life that began what is under
-- way; `epoch` rises whenever another one takes the row, and goes with every effect.
ALTER TABLE workspaces
    ADD COLUMN held_by bigint,
    ADD COLUMN shard smallint NOT NULL GENERATED ALWAYS AS (
        ((get_byte(uuid_send(id), 14) & 3) << 8) | get_byte(uuid_send(id), 15)
    ) STORED,
    -- Before this there is nothing to do, unless something else is seen than was: what is at rest is not even read.
    ADD COLUMN look_after timestamptz NOT NULL GENERATED ALWAYS AS (
        CASE
            WHEN operation = 'NONE' AND due_at IS NULL AND error_info IS NULL AND phase = desired_state
                THEN timestamptz 'infinity'
            WHEN operation = 'NONE' AND (error_info ->> 'is_terminal')::boolean
                 AND (error_info ->> 'wish_version')::bigint >= wish_version
                THEN timestamptz 'infinity'
            WHEN stage = 'BACKOFF' AND (error_info ->> 'wish_version')::bigint >= wish_version
                THEN least(due_at, deadline_at)
            ELSE timestamptz '-infinity'
        END
    ) STORED;

DROP INDEX workspaces_unsettled;
CREATE INDEX workspaces_watched ON workspaces (shard) WHERE NOT is_settled;
CREATE INDEX workspaces_due ON workspaces (shard, look_after) WHERE look_after < 'infinity';
CREATE INDEX workspaces_held ON workspaces (held_by) WHERE operation <> 'NONE';
-- What a wish to run is counted against, to the letter of the question.
DROP INDEX workspaces_counted;
CREATE INDEX workspaces_counted ON workspaces (owner_id)
    WHERE desired_state = 'RUNNING' OR container_present OR operation = 'STARTING';
CREATE INDEX workspaces_expected ON workspaces (id) WHERE home_seen AND deleted_at IS NULL;

-- Whether somebody else, who lives, has something under way on a row that this life holds or not.
-- Volatile, so that it is asked of the present moment: the other one may have shown a sign of life since a statement began.
CREATE FUNCTION is_held_by_another(held_by bigint, me bigint) RETURNS boolean VOLATILE LANGUAGE sql AS $$
    SELECT EXISTS (SELECT FROM controllers WHERE epoch = held_by AND held_by <> me AND expires_at > clock_timestamp())
$$;

-- The leader's lock has a term (`epoch`), taken by a life (`controller`, none once it was given up) on a connection (`backend`).
-- What runs once asks this first, in its transaction:
-- until that ends nobody else can begin a term.
ALTER TABLE system_locks ADD COLUMN controller bigint, ADD COLUMN backend integer;
DELETE FROM system_locks;
CREATE FUNCTION leads(term bigint) RETURNS boolean VOLATILE LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, public AS $$
    SELECT EXISTS (SELECT FROM system_locks WHERE lock_name = 'leader' AND epoch = term FOR SHARE)
$$;

GRANT SELECT ON controllers TO torpor_service, torpor_controller;
GRANT INSERT, UPDATE, DELETE ON controllers TO torpor_controller;
GRANT UPDATE (held_by) ON workspaces TO torpor_controller;
