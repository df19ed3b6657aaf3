-- Archives that nobody refers to are marked, and removed when their grace period has passed.

-- From `removing_since` on nothing may refer to this archive again: its object may be gone at any moment.
ALTER TABLE archives
    ADD COLUMN removing_since timestamptz,
    ADD CONSTRAINT only_orphans_are_removed CHECK (removing_since IS NULL OR orphan_since IS NOT NULL);
CREATE INDEX archives_going ON archives (key) WHERE removing_since IS NOT NULL;

-- What an operation left behind that did not come to its end was never proven: nobody may go back to it, so it is an orphan for
-- as long as it is there.
ALTER TABLE archives
    ALTER COLUMN revision DROP NOT NULL,
    ALTER COLUMN manifest_root DROP NOT NULL,
    ALTER COLUMN size_bytes DROP NOT NULL,
    ALTER COLUMN home_bytes DROP NOT NULL,
    ALTER COLUMN proven_at DROP NOT NULL,
    ADD CONSTRAINT proven_or_left_over CHECK (
        num_nulls(revision, manifest_root, size_bytes, home_bytes, proven_at) IN (0, 5)
    ),
    ADD CONSTRAINT what_is_left_over_is_an_orphan CHECK (proven_at IS NOT NULL OR orphan_since IS NOT NULL);

-- Whether what this operation wrote to the archive store is nobody's: it has ended, another one came after it, and the row does
-- not point at what it made.
CREATE FUNCTION is_left_over(workspace workspaces, made_by uuid) RETURNS boolean STABLE LANGUAGE sql AS $$
    SELECT workspace.op_id IS DISTINCT FROM made_by
       AND workspace.archive_key IS DISTINCT FROM workspace.id::text || '/' || made_by::text
       AND coalesce(bool_and(ended_at IS NOT NULL AND kind IN ('ARCHIVING', 'CREATE_EMPTY_ARCHIVE')), false)
    FROM operations WHERE workspace_id = workspace.id AND op_id = made_by
$$;

-- The last net under the rules of retention: what a living workspace wakes from is not given up, a removal that has begun is
-- not taken back, and no archive is forgotten that was not marked first.
CREATE FUNCTION refuse_to_lose_an_archive() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        IF OLD.removing_since IS NULL THEN
            RAISE EXCEPTION 'archive % was not marked for removal', OLD.key
                USING ERRCODE = 'check_violation', CONSTRAINT = 'only_what_was_marked_is_forgotten';
        END IF;
        RETURN OLD;
    END IF;
    IF OLD.removing_since IS NOT NULL AND NEW.removing_since IS DISTINCT FROM OLD.removing_since THEN
        RAISE EXCEPTION 'the removal of archive % has begun', OLD.key
            USING ERRCODE = 'check_violation', CONSTRAINT = 'a_removal_is_not_taken_back';
    END IF;
    IF NEW.removing_since IS NOT NULL AND OLD.removing_since IS NULL AND EXISTS (
        SELECT FROM workspaces WHERE id = NEW.workspace_id AND archive_key = NEW.key AND deleted_at IS NULL
    ) THEN
        RAISE EXCEPTION 'a living workspace points at archive %', NEW.key
            USING ERRCODE = 'check_violation', CONSTRAINT = 'what_is_pointed_at_is_not_removed';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER refuse_to_lose_an_archive BEFORE DELETE OR UPDATE OF removing_since ON archives
    FOR EACH ROW EXECUTE FUNCTION refuse_to_lose_an_archive();

-- The same net from the other side: nobody who lives comes to wake from an archive that is going.
CREATE FUNCTION refuse_a_going_archive() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM archives WHERE key = NEW.archive_key AND removing_since IS NOT NULL) THEN
        RAISE EXCEPTION 'the removal of archive % has begun', NEW.archive_key
            USING ERRCODE = 'check_violation', CONSTRAINT = 'what_is_going_is_not_pointed_at';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER refuse_a_going_archive BEFORE UPDATE OF archive_key, deleted_at ON workspaces
    FOR EACH ROW
    WHEN (NEW.deleted_at IS NULL AND NEW.archive_key IS NOT NULL
          AND (OLD.deleted_at IS NOT NULL OR OLD.archive_key IS DISTINCT FROM NEW.archive_key))
    EXECUTE FUNCTION refuse_a_going_archive();

-- What runs once for the whole installation, when, and what came of it.
CREATE TABLE housekeeping (
    is_the_only_row  boolean PRIMARY KEY DEFAULT true CHECK (is_the_only_row),
    -- What the service writes: an operator wants a collection now.
    gc_requested_at  timestamptz,
    -- What the controller writes: when the last collection was begun; when the last one that came to its end began and ended,
    -- and what came of it; what came of one since that did not; by which terms the leader decides.
    gc_tried_at      timestamptz,
    gc_ran_at        timestamptz,
    gc_ended_at      timestamptz,
    gc_report        jsonb,
    gc_skipped       jsonb,
    gc_terms         jsonb,
    -- Which archive store this database belongs to.
    archive_store    text
);
INSERT INTO housekeeping DEFAULT VALUES;

GRANT SELECT ON housekeeping TO torpor_service, torpor_controller;
GRANT UPDATE (gc_requested_at) ON housekeeping TO torpor_service;
GRANT UPDATE (gc_tried_at, gc_ran_at, gc_ended_at, gc_report, gc_skipped, gc_terms, archive_store) ON housekeeping
    TO torpor_controller;
-- What an archive is never changes; when it was proven and whether it is wanted does.
REVOKE UPDATE ON archives FROM torpor_controller;
GRANT UPDATE (proven_at, orphan_since, removing_since), DELETE ON archives TO torpor_controller;
