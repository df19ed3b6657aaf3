-- Archives of format 2 consist of packs, which the archives of one workspace share.
--
-- A transaction that adds a reference to a pack, or that marks or removes a pack, locks the row of the workspace first. So these
-- transactions follow each other, and none waits for another in a circle.

-- In the order in which controllers lock them: otherwise one that writes now and this migration could wait for each other.
LOCK TABLE controllers, workspaces, operations, archives IN ACCESS EXCLUSIVE MODE;

ALTER TABLE archives
    ADD COLUMN format smallint NOT NULL DEFAULT 1 CHECK (format IN (1, 2)),
    -- What the operation wrote to the store; NULL for format 1, which writes everything.
    ADD COLUMN new_bytes bigint CHECK (new_bytes >= 0);

CREATE TABLE packs (
    workspace_id   uuid NOT NULL REFERENCES workspaces (id),
    -- The operation that wrote it, and the SHA-256 of its bytes: {op_id}-{sha256}.
    name           text NOT NULL,
    size_bytes     bigint NOT NULL CHECK (size_bytes >= 0),
    -- When its bytes were last read back and compared with its name, and the ETag and time of the object then.
    proven_at      timestamptz,
    store_version  text,
    -- The last proof failed at this time.
    damaged_at     timestamptz,
    orphan_since   timestamptz,
    -- From here on no archive may name it: its object may be gone at any moment.
    removing_since timestamptz,
    PRIMARY KEY (workspace_id, name),
    CONSTRAINT only_orphan_packs_are_removed CHECK (removing_since IS NULL OR orphan_since IS NOT NULL),
    CONSTRAINT a_proof_has_a_version CHECK (num_nulls(proven_at, store_version) IN (0, 2)),
    CONSTRAINT a_pack_that_is_left_over_is_an_orphan CHECK (proven_at IS NOT NULL OR orphan_since IS NOT NULL)
);
CREATE INDEX packs_by_proof ON packs (greatest(proven_at, damaged_at)) WHERE orphan_since IS NULL;
CREATE INDEX packs_of_orphans ON packs (workspace_id, name) WHERE orphan_since IS NOT NULL;

-- Which archive names which pack. The pack of a row stays as long as the row, and the row as long as its archive.
CREATE TABLE archive_packs (
    archive_key   text NOT NULL REFERENCES archives (key) ON DELETE CASCADE,
    workspace_id  uuid NOT NULL,
    name          text NOT NULL,
    PRIMARY KEY (archive_key, name),
    FOREIGN KEY (workspace_id, name) REFERENCES packs (workspace_id, name),
    CONSTRAINT packs_are_of_the_same_workspace CHECK (archive_key LIKE workspace_id::text || '/%')
);
CREATE INDEX archive_packs_of_pack ON archive_packs (workspace_id, name);

-- No pack is forgotten that was not marked, a removal that has begun is not taken back, and a pack that an archive names is not
-- removed.
CREATE FUNCTION refuse_to_lose_a_pack() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        IF OLD.removing_since IS NULL THEN
            RAISE EXCEPTION 'pack % was not marked for removal', OLD.name
                USING ERRCODE = 'check_violation', CONSTRAINT = 'only_marked_packs_are_forgotten';
        END IF;
        RETURN OLD;
    END IF;
    IF OLD.removing_since IS NOT NULL AND NEW.removing_since IS DISTINCT FROM OLD.removing_since THEN
        RAISE EXCEPTION 'the removal of pack % has begun', OLD.name
            USING ERRCODE = 'check_violation', CONSTRAINT = 'a_removal_of_a_pack_is_not_taken_back';
    END IF;
    IF NEW.removing_since IS NOT NULL AND OLD.removing_since IS NULL AND EXISTS (
        SELECT FROM archive_packs WHERE workspace_id = NEW.workspace_id AND name = NEW.name
    ) THEN
        RAISE EXCEPTION 'an archive names pack %', NEW.name
            USING ERRCODE = 'check_violation', CONSTRAINT = 'a_pack_with_an_archive_is_not_removed';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER refuse_to_lose_a_pack BEFORE DELETE OR UPDATE OF removing_since ON packs
    FOR EACH ROW EXECUTE FUNCTION refuse_to_lose_a_pack();

-- An archive cannot be stored if it names a pack that is being removed, or one that is damaged and was not read back just now.
CREATE FUNCTION refuse_unusable_packs() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    unusable packs;
BEGIN
    SELECT packs.* INTO unusable FROM added JOIN packs USING (workspace_id, name)
    WHERE packs.removing_since IS NOT NULL OR packs.damaged_at IS NOT NULL LIMIT 1;
    IF unusable.removing_since IS NOT NULL THEN
        RAISE EXCEPTION 'the removal of pack % has begun', unusable.name
            USING ERRCODE = 'check_violation', CONSTRAINT = 'a_pack_that_is_removed_is_not_named';
    ELSIF unusable.damaged_at IS NOT NULL THEN
        RAISE EXCEPTION 'pack % is damaged', unusable.name
            USING ERRCODE = 'check_violation', CONSTRAINT = 'a_damaged_pack_is_not_named';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER refuse_unusable_packs AFTER INSERT ON archive_packs
    REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION refuse_unusable_packs();

-- When the content of an archive was last proven: with format 2, when its oldest proof among its packs was.
CREATE FUNCTION last_proven_at(archive archives) RETURNS timestamptz STABLE LANGUAGE sql AS $$
    SELECT CASE WHEN archive.format = 1 THEN archive.proven_at ELSE coalesce(
        (SELECT min(packs.proven_at) FROM archive_packs JOIN packs USING (workspace_id, name)
         WHERE archive_packs.archive_key = archive.key),
        archive.proven_at
    ) END
$$;

-- Whether the last proof of one of its packs failed.
CREATE FUNCTION is_damaged(archive archives) RETURNS boolean STABLE LANGUAGE sql AS $$
    SELECT archive.format <> 1 AND EXISTS (
        SELECT FROM archive_packs JOIN packs USING (workspace_id, name)
        WHERE archive_packs.archive_key = archive.key AND packs.damaged_at IS NOT NULL
    )
$$;

-- Whether a pack that the table does not have, written by this operation, belongs to no archive: the operation has ended,
-- another one came after it, and if the workspace is restored from the archive of that operation, the packs of that archive
-- are known.
CREATE FUNCTION is_left_over_pack(workspace workspaces, made_by uuid) RETURNS boolean STABLE LANGUAGE sql AS $$
    SELECT workspace.op_id IS DISTINCT FROM made_by
       AND (workspace.archive_key IS DISTINCT FROM workspace.id::text || '/' || made_by::text OR EXISTS (
               SELECT FROM archives WHERE key = workspace.archive_key AND proven_at IS NOT NULL
           ))
       AND coalesce(bool_and(ended_at IS NOT NULL AND kind IN ('ARCHIVING', 'CREATE_EMPTY_ARCHIVE')), false)
    FROM operations WHERE workspace_id = workspace.id AND op_id = made_by
$$;

-- Archives of this workspace are being read (a proof, a copy, an export): none of its packs and archives is marked or removed. A
-- lease ends by itself, so that a process that was killed does not hold it for ever.
CREATE TABLE archive_leases (
    id            uuid PRIMARY KEY,
    workspace_id  uuid NOT NULL REFERENCES workspaces (id) ON DELETE CASCADE,
    reason        text NOT NULL,
    expires_at    timestamptz NOT NULL
);
CREATE INDEX archive_leases_of_workspace ON archive_leases (workspace_id);

-- The formats of archives that this controller can read and write.
ALTER TABLE controllers ADD COLUMN archive_formats smallint[] NOT NULL DEFAULT '{1}';

GRANT SELECT ON packs, archive_packs TO torpor_service;
-- What a pack is never changes; when it was proven and whether it is needed does.
GRANT SELECT, INSERT, DELETE, UPDATE (proven_at, store_version, damaged_at, orphan_since, removing_since) ON packs
    TO torpor_controller;
GRANT SELECT, INSERT ON archive_packs TO torpor_controller;
GRANT SELECT, INSERT, DELETE, UPDATE (expires_at) ON archive_leases TO torpor_service, torpor_controller;
