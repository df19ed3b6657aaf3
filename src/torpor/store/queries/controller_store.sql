-- The statements of controller_store.py, controller_members.py and leader_lock.py, for the role torpor_controller.

-- name: clock
-- The database's clock is the only one that counts.
SELECT clock_timestamp();

-- name: hold_registry
-- Controllers join one at a time, so that two of different worlds cannot both join. A transaction that lets a user sign in
-- takes the same lock (`user_store.sql`): whether several users are allowed depends on which controllers have joined.
SELECT pg_advisory_xact_lock(hashtext('torpor.controllers'));

-- name: in_our_way
-- A living controller of another world, or one with our node name.
SELECT node_id, world FROM controllers
WHERE (world <> $1 OR node_id = $2) AND expires_at > clock_timestamp()
ORDER BY world = $1 LIMIT 1;

-- name: end_lives_in
-- Only one process can hold this world, so its earlier controllers are dead.
DELETE FROM controllers WHERE world = $1;

-- name: join_controllers
-- Start a new life with an epoch that was never used before.
INSERT INTO controllers (
    node_id, world, expires_at, archive_formats, missing, is_accepted, port_warning, cpu_warning, disk_warning
)
VALUES ($1, $2, clock_timestamp() + make_interval(secs => $3::double precision), $4, $5, $6, $7, $8, $9)
RETURNING epoch;

-- name: count_users
-- Users that can sign in.
SELECT count(*) FROM users WHERE is_active;

-- name: live_on
-- A heartbeat. One that comes too late fails, because other controllers may have taken over.
UPDATE controllers SET expires_at = clock_timestamp() + make_interval(secs => $2::double precision), sees_runtime = $3
WHERE epoch = $1 AND expires_at > clock_timestamp()
RETURNING epoch;

-- name: members
-- The living controllers, and which one leads. Of two lives of one node the later one counts.
SELECT DISTINCT ON (controllers.node_id) controllers.node_id, controllers.epoch, controllers.started_at, controllers.expires_at,
       controllers.epoch IS NOT DISTINCT FROM leader.controller AS is_leader,
       controllers.missing, controllers.is_accepted, controllers.port_warning, controllers.cpu_warning,
       controllers.disk_warning, controllers.sees_runtime
FROM controllers LEFT JOIN system_locks AS leader ON leader.lock_name = 'leader'
WHERE controllers.expires_at > clock_timestamp()
ORDER BY controllers.node_id, controllers.epoch DESC;

-- name: leave_controllers
-- End a life in an orderly way: the other controllers need not wait until it expires.
DELETE FROM controllers WHERE epoch = $1;

-- name: lives
SELECT EXISTS (SELECT FROM controllers WHERE epoch = $1 AND expires_at > clock_timestamp());

-- name: bury
-- Remove lives that expired an hour ago; until then they can be inspected.
DELETE FROM controllers WHERE expires_at < clock_timestamp() - interval '1 hour';

-- name: count_phases
SELECT phase, count(*) FROM workspaces GROUP BY phase;

-- name: begin_term
-- Runs on the connection that holds the lock. All earlier leaders are fenced afterwards.
INSERT INTO system_locks AS held (lock_name, holder_id, epoch, controller, backend)
VALUES ('leader', $1, 1, $2, pg_backend_pid())
ON CONFLICT (lock_name) DO UPDATE
    SET holder_id = $1, epoch = held.epoch + 1, controller = $2, backend = pg_backend_pid(), acquired_at = now()
RETURNING epoch;

-- name: end_term
-- The leader steps down. No controller leads until the next one begins a term.
UPDATE system_locks SET controller = NULL WHERE lock_name = 'leader' AND epoch = $1;

-- name: end_lost_term
-- The leader sends this on another connection, because the connection that holds its lock does not respond. Its backend is
-- ended, which frees the lock for the next leader.
WITH ended AS (
    UPDATE system_locks SET controller = NULL WHERE lock_name = 'leader' AND epoch = $1 RETURNING backend
)
SELECT pg_terminate_backend(session.pid)
FROM ended JOIN pg_stat_activity AS session ON session.pid = ended.backend
WHERE session.application_name = 'torpor_leader';

-- name: leads
-- Whether this term is current. No other controller can begin a term before our transaction ends.
SELECT leads($1);

-- name: end_silent_leader
-- End the connection that holds the lock, if it is one of Torpor's and its holder shows no sign of life: the leader of the
-- current term, whose life has expired, or a controller that took the lock and has not begun a term for that long.
SELECT pg_terminate_backend(held.pid)
FROM pg_locks AS held JOIN pg_stat_activity AS session ON session.pid = held.pid
WHERE held.locktype = 'advisory' AND held.granted AND held.objsubid = 1
  AND held.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND (held.classid::bigint << 32) | held.objid::bigint = $1
  AND session.application_name = 'torpor_leader'
  AND CASE
      WHEN EXISTS (
          SELECT FROM system_locks WHERE lock_name = 'leader' AND backend = held.pid AND acquired_at >= session.backend_start
      )
          THEN NOT EXISTS (
              SELECT FROM system_locks JOIN controllers ON controllers.epoch = system_locks.controller
              WHERE system_locks.lock_name = 'leader' AND controllers.expires_at > clock_timestamp()
          )
      ELSE session.backend_start < clock_timestamp() - make_interval(secs => $2::double precision)
  END;

-- name: end_who_keeps_the_term
-- We hold the lock but cannot begin a term: a process that was stopped in the middle of a duty still locks the last one.
SELECT pg_terminate_backend(pid) FROM pg_locks
WHERE relation = 'system_locks'::regclass AND granted AND pid NOT IN (pg_backend_pid(), $1);

-- name: due
-- The workspaces of our shards that are due, those whose operation we run, and those named. Also, from some of the shards, a
-- limited number of workspaces that are not settled, and whether the latch of the provider is released. Other rows are not
-- even read.
SELECT clock_timestamp() AS read_at,
       (SELECT released_at IS NOT NULL FROM latches WHERE provider = $5) AS latch_is_released,
       ARRAY(
           SELECT id FROM workspaces
           WHERE (shard = ANY ($2::smallint[]) AND look_after <= clock_timestamp() AND look_after < 'infinity'
                  AND (operation = 'NONE' OR NOT is_held_by_another(held_by, $1)))
              OR (held_by = $1 AND operation <> 'NONE' AND look_after <= clock_timestamp())
              OR id = ANY ($4::uuid[])
       ) AS due,
       ARRAY(
           SELECT id FROM workspaces WHERE shard = ANY ($3::smallint[]) AND NOT is_settled ORDER BY shard LIMIT $6
       ) AS watched;

-- name: load_these
-- The complete rows of the named workspaces, and whether we may change them: they are in our shards and no other controller
-- holds them, or we hold them.
SELECT workspaces.*, users.username AS owner, clock_timestamp() AS read_at,
       (SELECT home_bytes FROM archives WHERE archives.key = workspaces.archive_key) AS archive_home_bytes,
       (CASE WHEN workspaces.operation = 'NONE' THEN workspaces.shard = ANY ($2::smallint[])
             WHEN workspaces.held_by = $1 THEN true
             ELSE workspaces.shard = ANY ($2::smallint[]) AND NOT is_held_by_another(workspaces.held_by, $1)
        END) AS is_ours
FROM workspaces JOIN users ON users.id = workspaces.owner_id
WHERE workspaces.id = ANY ($3::uuid[]);

-- name: homes_to_measure
-- Homes whose size is unknown: new ones, those of workspaces that were stopped since the last measurement, and those of
-- running workspaces that were measured too long ago. Homes that are being filled or removed are left out.
SELECT id::text, generation, clock_timestamp() AS now FROM workspaces
WHERE volume_present AND home_seen AND operation NOT IN ('RESTORING', 'ARCHIVING', 'DELETING')
  AND (disk_generation IS DISTINCT FROM generation
       OR (phase = 'STANDBY' AND disk_measured_at < phase_changed_at)
       OR (container_present AND disk_measured_at < clock_timestamp() - make_interval(secs => $1)))
  AND NOT id = ANY ($2::uuid[])
ORDER BY disk_measured_at NULLS FIRST
LIMIT $3;

-- name: write_home_size
UPDATE workspaces SET disk_bytes = $3, disk_generation = $2, disk_measured_at = $4 WHERE id = $1 AND generation = $2;

-- name: all_home_bytes
SELECT coalesce(sum(disk_bytes), 0)::bigint FROM workspaces WHERE volume_present AND disk_generation = generation;

-- name: expected_homes
-- Every home that must exist, of all controllers.
SELECT id::text, generation FROM workspaces
WHERE home_seen AND deleted_at IS NULL AND NOT coalesce((error_info ->> 'is_terminal')::boolean, false)
  AND (archive_generation, archive_revision) IS DISTINCT FROM (generation, revision);

-- name: persist
-- Write the changes as one batch: a row only if it was not changed since it was read, and nothing if the life of the writer
-- has ended.
WITH input AS (
    SELECT * FROM jsonb_to_recordset($1::jsonb) AS change (
        id uuid, expected_version bigint, expected_wish_version bigint, epoch bigint,
        phase text, phase_changed_at timestamptz, previous_phase text, observed_at timestamptz, conditions jsonb,
        container_present boolean, volume_present boolean, location jsonb,
        operation text, stage text, due_at timestamptz, op_id uuid, op_attempt integer, op_epoch bigint, op_takeovers integer,
        op_started_at timestamptz, deadline_at timestamptz, progress_done bigint, progress_total bigint,
        progress_files bigint, progress_files_total bigint,
        generation integer, revision integer, home_seen boolean,
        archive_key text, archive_generation integer, archive_revision integer, archive_root text,
        error_info jsonb, error_count integer, quick_ends integer,
        opened_op_id uuid, opened_kind text, opened_attempt integer, opened_generation integer, opened_message text,
        closed_op_id uuid, closed_attempt integer, closed_outcome text, closed_reason text, closed_message text,
        closed_bytes bigint,
        proved_size_bytes bigint, proved_home_bytes bigint, proved_format smallint, proved_new_bytes bigint, proved_packs jsonb,
        lost_packs jsonb, lost_roots text[], restored_version bigint
    )
), fence AS MATERIALIZED (
    -- Locked until we commit, so that no other controller can remove our life in between.
    SELECT epoch AS life FROM controllers WHERE epoch = $2 AND expires_at > clock_timestamp() FOR SHARE
), free AS MATERIALIZED (
    -- A row that another transaction has locked (a wish is being written) is left for the next reconcile pass: we do not wait.
    SELECT id FROM workspaces WHERE id IN (SELECT id FROM input) FOR UPDATE SKIP LOCKED
), written AS (
    UPDATE workspaces SET
        version = workspaces.version + 1, epoch = input.epoch, held_by = fence.life,
        phase = input.phase, phase_changed_at = input.phase_changed_at, previous_phase = input.previous_phase,
        observed_at = input.observed_at, conditions = input.conditions,
        container_present = input.container_present, volume_present = input.volume_present, location = input.location,
        operation = input.operation, stage = input.stage, due_at = input.due_at, op_id = input.op_id,
        op_attempt = input.op_attempt, op_epoch = input.op_epoch, op_takeovers = input.op_takeovers,
        op_started_at = input.op_started_at, deadline_at = input.deadline_at,
        progress_done = input.progress_done, progress_total = input.progress_total,
        progress_files = input.progress_files, progress_files_total = input.progress_files_total,
        generation = input.generation, revision = input.revision, home_seen = input.home_seen,
        archive_key = input.archive_key, archive_generation = input.archive_generation,
        archive_revision = input.archive_revision, archive_root = input.archive_root,
        error_info = input.error_info, error_count = input.error_count, quick_ends = input.quick_ends,
        restored_version = input.restored_version
    FROM input JOIN free USING (id), fence
    WHERE workspaces.id = input.id
      AND workspaces.version = input.expected_version
      AND workspaces.epoch <= input.epoch
      AND (workspaces.operation = 'NONE' OR NOT is_held_by_another(workspaces.held_by, fence.life))
      AND (input.expected_wish_version IS NULL OR workspaces.wish_version = input.expected_wish_version)
    RETURNING workspaces.id
), closed AS (
    UPDATE operations SET
        ended_at = clock_timestamp(), outcome = input.closed_outcome, reason = input.closed_reason,
        message = coalesce(nullif(input.closed_message, ''), operations.message), done_bytes = input.closed_bytes
    FROM input JOIN written USING (id)
    WHERE operations.workspace_id = input.id
      AND operations.op_id = input.closed_op_id
      AND operations.attempt = input.closed_attempt
    RETURNING 1
), opened AS (
    INSERT INTO operations (workspace_id, op_id, attempt, kind, generation, epoch, started_at, message)
    SELECT id, opened_op_id, opened_attempt, opened_kind, opened_generation, input.epoch, clock_timestamp(), opened_message
    FROM input JOIN written USING (id)
    -- The count makes `closed` run first: a workspace has one open operation at a time.
    WHERE opened_op_id IS NOT NULL AND (SELECT count(*) FROM closed) >= 0
), proved AS (
    INSERT INTO archives (
        key, workspace_id, op_id, generation, revision, manifest_root, size_bytes, home_bytes, format, new_bytes, proven_at
    )
    SELECT archive_key, id, op_id, archive_generation, archive_revision, archive_root,
           proved_size_bytes, proved_home_bytes, proved_format, proved_new_bytes, clock_timestamp()
    FROM input JOIN written USING (id)
    WHERE proved_size_bytes IS NOT NULL
    ON CONFLICT (key) DO UPDATE SET proven_at = excluded.proven_at, root_damaged_at = NULL, is_root_suspect = false
), proved_packs AS MATERIALIZED (
    -- All of them were read back after their attempt began.
    SELECT input.id AS workspace_id, input.archive_key, pack.*, least(clock_timestamp(), coalesce((
        SELECT started_at FROM operations
        WHERE operations.workspace_id = input.id AND operations.op_id = input.op_id AND operations.attempt = input.op_attempt
    ), input.op_started_at)) AS began_at
    FROM input JOIN written USING (id), jsonb_to_recordset(input.proved_packs) AS pack (
        name text, size_bytes bigint, store_version text, is_read_back boolean
    )
), read_back AS (
    INSERT INTO packs (workspace_id, name, size_bytes, store_version, proven_at)
    SELECT workspace_id, name, size_bytes, store_version, began_at FROM proved_packs WHERE is_read_back ORDER BY 1, 2
    ON CONFLICT (workspace_id, name) DO UPDATE SET
        store_version = excluded.store_version, proven_at = excluded.proven_at, damaged_at = NULL, is_suspect = false,
        orphan_since = CASE WHEN packs.removing_since IS NOT NULL THEN packs.orphan_since END
), taken_over AS (
    UPDATE packs SET orphan_since = NULL FROM proved_packs AS taken
    WHERE packs.workspace_id = taken.workspace_id AND packs.name = taken.name AND NOT taken.is_read_back
      AND packs.orphan_since IS NOT NULL AND packs.removing_since IS NULL
), named AS (
    INSERT INTO archive_packs (archive_key, workspace_id, name) SELECT archive_key, workspace_id, name FROM proved_packs
    ON CONFLICT (archive_key, name) DO NOTHING
), lost_packs AS (
    -- An operation could not read them. The leader reads them again, and removes the mark if they are good.
    UPDATE packs SET damaged_at = clock_timestamp(), is_suspect = true
    FROM input JOIN written USING (id), jsonb_to_recordset(input.lost_packs) AS lost (workspace_id uuid, name text)
    WHERE packs.workspace_id = lost.workspace_id AND packs.name = lost.name
      AND packs.proven_at IS NOT NULL AND packs.removing_since IS NULL
), lost_roots AS (
    UPDATE archives SET root_damaged_at = clock_timestamp(), is_root_suspect = true
    FROM input JOIN written USING (id)
    WHERE archives.key = ANY (input.lost_roots) AND archives.format = 2
      AND archives.proven_at IS NOT NULL AND archives.removing_since IS NULL
)
SELECT id FROM written;

-- name: latch
-- Too many homes are missing at this provider. Return whether an operator has already released the latch.
INSERT INTO latches (provider, expected, missing) VALUES ($1, $2, $3)
ON CONFLICT (provider) DO UPDATE SET expected = excluded.expected, missing = excluded.missing
RETURNING released_at IS NOT NULL AS is_released;

-- name: unlatch
-- The homes are visible again.
DELETE FROM latches WHERE provider = $1;

-- name: sealed_secrets
SELECT workspace_id::text, name, key_id, sealed FROM secrets WHERE workspace_id = $1 ORDER BY name;

-- name: archive_formats
-- The formats that each living controller supports.
SELECT archive_formats FROM controllers WHERE expires_at > clock_timestamp();

-- name: base_archive
-- The archive of a workspace, if the next one can take content over from it.
SELECT key, manifest_root FROM archives
WHERE key = $1 AND format = 2 AND proven_at IS NOT NULL AND removing_since IS NULL;

-- name: base_packs
-- Its packs: whether each can be used, and whether it was proven within so many seconds.
SELECT packs.name, packs.store_version, packs.damaged_at IS NOT NULL OR packs.removing_since IS NOT NULL AS is_unusable,
       packs.proven_at > clock_timestamp() - make_interval(secs => $2::double precision) AS is_trusted
FROM archive_packs JOIN packs USING (workspace_id, name) WHERE archive_packs.archive_key = $1;

-- name: unusable_packs
-- Those of these packs that an archive must not name: they were removed, are being removed, or are damaged.
SELECT taken.name FROM unnest($2::text[]) AS taken (name)
LEFT JOIN packs ON packs.workspace_id = $1 AND packs.name = taken.name
WHERE packs.name IS NULL OR packs.removing_since IS NOT NULL OR packs.damaged_at IS NOT NULL
ORDER BY taken.name;
