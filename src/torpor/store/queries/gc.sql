-- The statements of gc.py: the leader runs garbage collection as torpor_controller; the API reads and requests it as
-- torpor_service.

-- name: known_archives
-- A page of all archives in the table, to compare with the objects in the store. An archive is expected if it was proven
-- before the listing began and is not being removed.
SELECT key, coalesce(proven_at < $3, false) AND removing_since IS NULL AS is_expected
FROM archives WHERE key > $1 ORDER BY key LIMIT $2;

-- name: made_last
-- The archives that the last operations of these workspaces make or made: they can be in the store before the table has
-- them.
SELECT id::text || '/' || op_id::text AS key FROM workspaces WHERE id = ANY ($1::uuid[]) AND op_id IS NOT NULL;

-- name: left_over
-- Of these objects (by workspace and operation), which the table does not have: those that no operation needs any more.
SELECT id::text || '/' || made_by::text AS key
FROM unnest($1::uuid[], $2::uuid[]) AS asked (workspace_id, made_by) JOIN workspaces ON id = workspace_id
WHERE is_left_over(workspaces, made_by);

-- name: take_in_left_over
-- Add these objects to the table as orphans that were never proven, if no operation needs them any more.
INSERT INTO archives (key, workspace_id, op_id, generation, orphan_since)
SELECT id::text || '/' || made_by::text, id, made_by,
       (SELECT max(operations.generation) FROM operations WHERE workspace_id = id AND operations.op_id = made_by),
       clock_timestamp()
FROM unnest($1::uuid[], $2::uuid[]) AS asked (workspace_id, made_by) JOIN workspaces ON id = workspace_id
WHERE is_left_over(workspaces, made_by)
ON CONFLICT (key) DO NOTHING;

-- name: held_back_at
-- Providers with so many missing homes that nothing is changed there.
SELECT provider FROM latches WHERE released_at IS NULL ORDER BY provider;

-- name: candidates
-- Workspaces that may have an archive to mark, clear or remove. All others keep all their archives.
SELECT workspaces.id::text AS id
FROM archives JOIN workspaces ON workspaces.id = archives.workspace_id
GROUP BY workspaces.id
HAVING count(*) > $1
    OR bool_or(archives.orphan_since IS NOT NULL)
    OR workspaces.purge
    OR (workspaces.phase = 'DELETED'
        AND greatest(workspaces.deleted_at, workspaces.phase_changed_at) < clock_timestamp() - $2::interval)
ORDER BY workspaces.id;

-- name: hold_workspaces
-- Lock these rows, so that no request, operation or archive is written before we are done. Rows that others have locked are
-- skipped.
SELECT id::text AS id FROM workspaces WHERE id = ANY ($1::uuid[]) ORDER BY id FOR NO KEY UPDATE SKIP LOCKED;

-- name: holders
-- What garbage collection needs to know about these workspaces.
SELECT id::text AS id, name, archive_key, op_id::text AS op_id, operation <> 'NONE' AS is_under_way,
       ARRAY (
           SELECT operations.op_id::text FROM operations WHERE operations.workspace_id = workspaces.id AND ended_at IS NULL
       ) AS under_way,
       recover_request #>> '{archive,key}' AS asked_for,
       CASE WHEN (restore_request ->> 'wish_version')::bigint > restored_version THEN restore_request #>> '{archive,key}' END
           AS to_restore,
       ARRAY (
           SELECT forks.fork_source ->> 'key' FROM workspaces AS forks
           WHERE forks.fork_source ->> 'workspace_id' = workspaces.id::text AND forks.fork_source IS NOT NULL
             AND forks.archive_key IS NULL AND forks.generation = 0
             AND (forks.deleted_at IS NULL OR forks.operation <> 'NONE')
       ) AS to_copy,
       error_info IS NOT NULL OR coalesce(conditions -> 'policy.healthy' ->> 'status' = 'False', false) AS is_in_error,
       deleted_at, CASE WHEN phase = 'DELETED' THEN greatest(deleted_at, phase_changed_at) END AS gone_at,
       purge AS is_purged, clock_timestamp() AS read_at,
       EXISTS (
           SELECT FROM archive_leases WHERE archive_leases.workspace_id = workspaces.id AND expires_at > clock_timestamp()
       ) AS is_read
FROM workspaces WHERE id = ANY ($1::uuid[]) ORDER BY id;

-- name: archives_of_holders
-- With the bytes that its removal frees: of format 2, the packs are counted when they are removed.
SELECT workspace_id::text AS workspace_id, key, op_id::text AS op_id, CASE WHEN format = 1 THEN size_bytes END AS size_bytes,
       proven_at, orphan_since, removing_since, format, is_damaged(archives) AS is_damaged
FROM archives WHERE workspace_id = ANY ($1::uuid[]) ORDER BY workspace_id, proven_at DESC, key DESC;

-- name: mark_orphans
-- Mark them as orphans as of now, also if an earlier mark exists.
UPDATE archives SET orphan_since = clock_timestamp() WHERE key = ANY ($1) AND removing_since IS NULL;

-- name: clear_marks
UPDATE archives SET orphan_since = NULL WHERE key = ANY ($1) AND removing_since IS NULL;

-- name: begin_removal
-- From here on the removal cannot be undone: nothing may refer to these archives any more.
UPDATE archives SET removing_since = clock_timestamp()
WHERE key = ANY ($1) AND removing_since IS NULL AND orphan_since IS NOT NULL;

-- name: going
-- A page of the archives to remove, of this collection or of an earlier one that was interrupted.
SELECT key FROM archives WHERE removing_since IS NOT NULL AND key > $1 ORDER BY key LIMIT $2;

-- name: forget
-- Their objects have been removed. An archive of format 2 frees nothing: its packs are removed later, if no archive needs them.
DELETE FROM archives WHERE key = ANY ($1) AND removing_since IS NOT NULL
RETURNING CASE WHEN format = 1 THEN size_bytes END AS size_bytes;

-- name: totals
SELECT count(*) FILTER (WHERE orphan_since IS NULL) AS kept,
       count(*) FILTER (WHERE orphan_since IS NOT NULL) AS orphans,
       extract(epoch FROM clock_timestamp() - least(
           min(greatest(proven_at, root_proven_at)) FILTER (WHERE orphan_since IS NULL),
           (SELECT min(proven_at) FROM packs WHERE orphan_since IS NULL)
       ))::double precision AS oldest_proof_s,
       clock_timestamp() AS read_at
FROM archives;

-- name: is_due
-- True if a collection was requested or the interval is over. One that was interrupted or skipped is not repeated at once,
-- unless it is requested again. Times in the future (the clock was set) are ignored.
SELECT coalesce(
           (gc_ran_at IS NULL OR gc_ran_at NOT BETWEEN now - $1::interval AND now OR gc_ran_at < asked_at)
           AND (gc_tried_at IS NULL OR gc_tried_at NOT BETWEEN now - $2::interval AND now OR gc_tried_at < asked_at),
           false
       ) AS is_due
FROM housekeeping, clock_timestamp() AS now, LATERAL (
    SELECT CASE WHEN gc_requested_at <= now THEN gc_requested_at END AS asked_at
) AS asked;

-- name: begin_collection
UPDATE housekeeping SET gc_tried_at = clock_timestamp(), gc_terms = $1::jsonb RETURNING gc_tried_at;

-- name: end_collection
-- The collection is complete: requests from before its start are answered.
UPDATE housekeeping SET
    gc_ran_at = $1, gc_ended_at = now, gc_report = $2::jsonb || jsonb_build_object('ended_at', now), gc_skipped = NULL
FROM clock_timestamp() AS now;

-- name: skip_collection
-- The report of the last complete collection stays.
UPDATE housekeeping SET gc_skipped = $1::jsonb || jsonb_build_object('ended_at', clock_timestamp());

-- name: remember_store
-- The first archive store that this database was used with stays its store.
UPDATE housekeeping SET archive_store = coalesce(archive_store, $1) RETURNING archive_store;

-- name: request_collection
UPDATE housekeeping SET gc_requested_at = clock_timestamp() RETURNING gc_requested_at;

-- name: housekeeping
SELECT gc_requested_at, gc_tried_at, gc_ran_at, gc_ended_at, gc_report, gc_skipped, gc_terms, clock_timestamp() AS read_at
FROM housekeeping;

-- name: archive_standing
-- Whether this archive of this workspace can be relied on. No row means that it was removed.
SELECT orphan_since IS NOT NULL AS is_marked FROM archives WHERE workspace_id = $1 AND key = $2;

-- name: forget_logs
-- The last lines of workspaces that were purged, or deleted so many seconds ago.
DELETE FROM kept_logs USING workspaces
WHERE workspaces.id = kept_logs.workspace_id
  AND (workspaces.deleted_at < clock_timestamp() - make_interval(secs => $1::double precision)
       OR (workspaces.deleted_at IS NOT NULL AND workspaces.purge AND NOT workspaces.container_present));

-- name: forget_secrets
-- The secrets of workspaces that were deleted so many seconds ago. (A purge removes them at once.)
DELETE FROM secrets USING workspaces
WHERE workspaces.id = secrets.workspace_id
  AND workspaces.deleted_at < clock_timestamp() - make_interval(secs => $1::double precision);
