-- The roots of archives of format 2 are proven again, like packs. A proof counts from the time at which it began.

-- In the order in which controllers lock them: otherwise one that writes now and this migration could wait for each other.
LOCK TABLE archives, packs IN ACCESS EXCLUSIVE MODE;

ALTER TABLE archives
    -- When the root was last read again and compared with this row; NULL: not since `proven_at`.
    ADD COLUMN root_proven_at timestamptz,
    -- The last proof of the root failed at this time.
    ADD COLUMN root_damaged_at timestamptz,
    -- An operation found it damaged: the leader reads it next, and either confirms that or removes the mark.
    ADD COLUMN is_root_suspect boolean NOT NULL DEFAULT false;
CREATE INDEX archives_by_proof_of_root ON archives (greatest(proven_at, root_proven_at, root_damaged_at))
    WHERE format = 2 AND orphan_since IS NULL;

CREATE INDEX archives_with_suspect_root ON archives (key) WHERE is_root_suspect;

ALTER TABLE packs
    -- Since when this table has the pack. It was in the store before that.
    ADD COLUMN known_since timestamptz NOT NULL DEFAULT clock_timestamp(),
    ADD COLUMN is_suspect boolean NOT NULL DEFAULT false;
CREATE INDEX packs_suspect ON packs (workspace_id, name) WHERE is_suspect;
UPDATE packs SET known_since = proven_at WHERE proven_at IS NOT NULL;

-- When the content of an archive was last proven: with format 2, the oldest proof among its root and its packs.
CREATE OR REPLACE FUNCTION last_proven_at(archive archives) RETURNS timestamptz STABLE LANGUAGE sql AS $$
    SELECT CASE WHEN archive.format = 1 THEN archive.proven_at ELSE least(
        greatest(archive.proven_at, archive.root_proven_at),
        (SELECT min(packs.proven_at) FROM archive_packs JOIN packs USING (workspace_id, name)
         WHERE archive_packs.archive_key = archive.key)
    ) END
$$;

-- Whether the last proof of its root or of one of its packs failed.
CREATE OR REPLACE FUNCTION is_damaged(archive archives) RETURNS boolean STABLE LANGUAGE sql AS $$
    SELECT archive.format <> 1 AND (archive.root_damaged_at IS NOT NULL OR EXISTS (
        SELECT FROM archive_packs JOIN packs USING (workspace_id, name)
        WHERE archive_packs.archive_key = archive.key AND packs.damaged_at IS NOT NULL
    ))
$$;

GRANT UPDATE (root_proven_at, root_damaged_at, is_root_suspect) ON archives TO torpor_controller;
GRANT UPDATE (is_suspect) ON packs TO torpor_controller;
