-- The statements of pack_gc.py: the leader collects packs as torpor_controller; the API reads as torpor_service.

-- name: known_packs
-- A page of all packs in the table, to compare with the objects in the store. A pack is expected if it was proven and
-- stored in the table before the listing began, is not known to be damaged and is not being removed.
SELECT workspace_id::text AS workspace_id, name, size_bytes,
       proven_at IS NOT NULL AND known_since < $4 AND damaged_at IS NULL AND removing_since IS NULL AS is_expected
FROM packs WHERE (workspace_id, name) > ($1::uuid, $2::text) ORDER BY workspace_id, name LIMIT $3;

-- name: operations_that_left_packs
-- Of these operations (by workspace), those that need no pack that the table does not have.
SELECT workspace_id::text AS workspace_id, made_by::text AS op_id
FROM unnest($1::uuid[], $2::uuid[]) AS asked (workspace_id, made_by) JOIN workspaces ON id = workspace_id
WHERE is_left_over_pack(workspaces, made_by);

-- name: operations_of_copies
-- Of these operations (by workspace), those whose packs are copied to this workspace, or may be again.
SELECT workspace_id::text AS workspace_id, made_by::text AS op_id
FROM unnest($1::uuid[], $2::uuid[]) AS asked (workspace_id, made_by) JOIN workspaces ON id = workspace_id
WHERE may_be_copied(workspaces) AND is_of_source(workspaces, made_by);

-- name: take_in_left_over_packs
-- Add these packs to the table as orphans that were never proven, if no operation needs them any more and none is in progress.
INSERT INTO packs (workspace_id, name, size_bytes, orphan_since)
SELECT workspaces.id, asked.name, asked.size_bytes, clock_timestamp()
FROM unnest($2::uuid[], $3::text[], $4::bigint[]) AS asked (made_by, name, size_bytes) JOIN workspaces ON workspaces.id = $1
WHERE is_left_over_pack(workspaces, asked.made_by) AND workspaces.operation = 'NONE'
  AND NOT EXISTS (SELECT FROM archive_leases WHERE workspace_id = $1 AND expires_at > clock_timestamp())
ON CONFLICT (workspace_id, name) DO NOTHING;

-- name: pack_candidates
-- Workspaces that may have a pack to mark, clear or remove.
SELECT DISTINCT workspace_id::text AS id FROM packs
WHERE orphan_since IS NOT NULL
   OR NOT EXISTS (
       SELECT FROM archive_packs WHERE archive_packs.workspace_id = packs.workspace_id AND archive_packs.name = packs.name
   )
ORDER BY 1;

-- name: packs_of_holders
-- Their packs that are marked or that no archive names. All others are needed.
SELECT packs.workspace_id::text AS workspace_id, packs.name, packs.size_bytes, packs.proven_at, packs.orphan_since,
       packs.removing_since, named.is_named
FROM packs, LATERAL (
    SELECT EXISTS (
        SELECT FROM archive_packs WHERE archive_packs.workspace_id = packs.workspace_id AND archive_packs.name = packs.name
    ) AS is_named
) AS named
WHERE packs.workspace_id = ANY ($1::uuid[]) AND (packs.orphan_since IS NOT NULL OR NOT named.is_named)
ORDER BY packs.workspace_id, packs.name;

-- name: known_roots
-- The archives of format 2 of a workspace that are not being removed (or only the one with this key), with the packs that each
-- must name.
SELECT archives.key, archives.manifest_root, archive_packs.name, packs.size_bytes, clock_timestamp() AS read_at
FROM archives LEFT JOIN archive_packs ON archive_packs.archive_key = archives.key
LEFT JOIN packs ON packs.workspace_id = archive_packs.workspace_id AND packs.name = archive_packs.name
WHERE archives.workspace_id = $1 AND archives.format = 2 AND archives.proven_at IS NOT NULL AND archives.removing_since IS NULL
  AND ($2::text IS NULL OR archives.key = $2);

-- name: known_root_keys
SELECT key FROM archives WHERE workspace_id = $1 AND format = 2 AND proven_at IS NOT NULL AND removing_since IS NULL;

-- name: mark_packs
-- Mark them as orphans as of now, also if an earlier mark exists.
UPDATE packs SET orphan_since = clock_timestamp() WHERE workspace_id = $1 AND name = ANY ($2) AND removing_since IS NULL;

-- name: clear_pack_marks
UPDATE packs SET orphan_since = NULL WHERE workspace_id = $1 AND name = ANY ($2) AND removing_since IS NULL;

-- name: begin_pack_removal
-- From here on the removal cannot be undone: no archive may name these packs any more.
UPDATE packs SET removing_since = clock_timestamp()
WHERE workspace_id = $1 AND name = ANY ($2) AND removing_since IS NULL AND orphan_since IS NOT NULL;

-- name: going_packs
-- A page of the packs to remove, of this collection or of an earlier one that was interrupted. Those of workspaces with an
-- operation in progress wait.
SELECT packs.workspace_id::text AS workspace_id, packs.name FROM packs JOIN workspaces ON workspaces.id = packs.workspace_id
WHERE packs.removing_since IS NOT NULL AND workspaces.operation = 'NONE' AND (packs.workspace_id, packs.name) > ($1::uuid, $2)
ORDER BY packs.workspace_id, packs.name LIMIT $3;

-- name: forget_packs
-- Their objects have been removed.
DELETE FROM packs USING unnest($1::uuid[], $2::text[]) AS gone (workspace_id, name)
WHERE packs.workspace_id = gone.workspace_id AND packs.name = gone.name AND removing_since IS NOT NULL
RETURNING size_bytes;

-- name: pack_totals
SELECT count(*) FILTER (WHERE orphan_since IS NULL) AS kept,
       count(*) FILTER (WHERE orphan_since IS NOT NULL) AS orphans,
       count(*) FILTER (WHERE damaged_at IS NOT NULL) AS damaged
FROM packs;

-- name: pack_to_prove
-- The pack with the oldest proof, if it is older than so many seconds. One that was found damaged is tried again as late as one
-- that was proven.
SELECT workspace_id::text AS workspace_id, name, size_bytes, clock_timestamp() AS read_at FROM packs
WHERE orphan_since IS NULL
  AND greatest(proven_at, damaged_at) < clock_timestamp() - make_interval(secs => $1::double precision)
  AND NOT name = ANY ($2)
ORDER BY greatest(proven_at, damaged_at) LIMIT 1;

-- name: suspect_pack
-- A pack that an operation found damaged.
SELECT workspace_id::text AS workspace_id, name, size_bytes, clock_timestamp() AS read_at FROM packs
WHERE is_suspect AND orphan_since IS NULL AND NOT name = ANY ($1) ORDER BY damaged_at LIMIT 1;

-- name: record_proof
UPDATE packs SET proven_at = $3, store_version = $4, damaged_at = NULL, is_suspect = false
WHERE workspace_id = $1 AND name = $2 AND removing_since IS NULL AND proven_at <= $3
RETURNING name;

-- name: record_damage
-- A proof that another operation made since then counts more.
UPDATE packs SET damaged_at = clock_timestamp(), is_suspect = false
WHERE workspace_id = $1 AND name = $2 AND removing_since IS NULL AND proven_at < $3
RETURNING name;

-- name: root_to_prove
-- The archive whose root has the oldest proof, if it is older than so many seconds.
SELECT workspace_id::text AS workspace_id, key FROM archives
WHERE format = 2 AND orphan_since IS NULL AND proven_at IS NOT NULL
  AND greatest(proven_at, root_proven_at, root_damaged_at) < clock_timestamp() - make_interval(secs => $1::double precision)
  AND NOT key = ANY ($2)
ORDER BY greatest(proven_at, root_proven_at, root_damaged_at) LIMIT 1;

-- name: suspect_root
-- An archive whose root an operation found damaged.
SELECT workspace_id::text AS workspace_id, key FROM archives
WHERE is_root_suspect AND orphan_since IS NULL AND NOT key = ANY ($1) ORDER BY root_damaged_at LIMIT 1;

-- name: record_proof_of_root
UPDATE archives SET root_proven_at = $2, root_damaged_at = NULL, is_root_suspect = false
WHERE key = $1 AND removing_since IS NULL AND greatest(proven_at, root_proven_at) <= $2;

-- name: record_damage_of_root
-- A proof that another operation made since then counts more.
UPDATE archives SET root_damaged_at = clock_timestamp(), is_root_suspect = false
WHERE key = $1 AND removing_since IS NULL AND greatest(proven_at, root_proven_at) < $2
RETURNING key;

-- name: archives_with_pack
SELECT archive_key FROM archive_packs WHERE workspace_id = $1 AND name = $2 ORDER BY archive_key;

-- name: forget_leases
DELETE FROM archive_leases WHERE expires_at < clock_timestamp() - interval '1 hour';
