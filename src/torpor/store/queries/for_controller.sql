-- What a controller reads and writes, as the role torpor_controller.

-- name: clock
-- The one clock.
SELECT clock_timestamp();

-- name: take_epoch
-- A new controller takes over: every earlier one is fenced from here on.
INSERT INTO system_locks AS held (lock_name, holder_id, epoch)
SELECT 'controller', $1, coalesce(max(epoch), 0) + 1 FROM workspaces
ON CONFLICT (lock_name) DO UPDATE
    SET holder_id = $1, epoch = greatest(held.epoch + 1, excluded.epoch), acquired_at = now()
RETURNING epoch;

-- name: present_epoch
SELECT epoch FROM system_locks WHERE lock_name = 'controller';

-- name: unsettled
-- Every workspace with something to do or something to watch, and those named, with a mark that changes whenever its row
-- does; sleepers are not even read.
SELECT clock_timestamp() AS read_at,
       coalesce(array_agg(id::text), '{}') AS ids,
       coalesce(array_agg(xmin::text), '{}') AS marks
FROM workspaces
WHERE NOT is_settled OR id = ANY ($1::uuid[]);

-- name: load_these
-- The workspaces named, whole.
SELECT workspaces.*, users.username AS owner, workspaces.xmin::text AS mark, clock_timestamp() AS read_at
FROM workspaces JOIN users ON users.id = workspaces.owner_id
WHERE workspaces.id = ANY ($1::uuid[]);

-- name: persist
-- What changed, as one batch: each row if nobody wrote it since, nothing if a later controller has taken over.
WITH input AS (
    SELECT * FROM jsonb_to_recordset($1::jsonb) AS change (
        id uuid, expected_version bigint, expected_wish_version bigint,
        phase text, phase_changed_at timestamptz, previous_phase text, observed_at timestamptz, conditions jsonb,
        container_present boolean, volume_present boolean,
        operation text, stage text, due_at timestamptz, op_id uuid, op_attempt integer, op_epoch bigint, op_takeovers integer,
        op_started_at timestamptz, deadline_at timestamptz, progress_done bigint, progress_total bigint,
        generation integer, revision integer, home_seen boolean,
        archive_key text, archive_generation integer, archive_revision integer, archive_root text,
        error_info jsonb, error_count integer, quick_ends integer,
        opened_op_id uuid, opened_kind text, opened_attempt integer, opened_generation integer,
        closed_op_id uuid, closed_attempt integer, closed_outcome text, closed_reason text, closed_message text,
        closed_bytes bigint,
        proved_size_bytes bigint, proved_home_bytes bigint
    )
), fence AS MATERIALIZED (
    -- Locked until we commit, so that a takeover cannot slip in between.
    SELECT epoch FROM system_locks WHERE lock_name = 'controller' AND epoch = $2 FOR SHARE
), free AS MATERIALIZED (
    -- A row that somebody holds just now (a wish is being written down) is left for the next look; nobody waits for it.
    SELECT id FROM workspaces WHERE id IN (SELECT id FROM input) FOR UPDATE SKIP LOCKED
), written AS (
    UPDATE workspaces SET
        version = workspaces.version + 1, epoch = $2,
        phase = input.phase, phase_changed_at = input.phase_changed_at, previous_phase = input.previous_phase,
        observed_at = input.observed_at, conditions = input.conditions,
        container_present = input.container_present, volume_present = input.volume_present,
        operation = input.operation, stage = input.stage, due_at = input.due_at, op_id = input.op_id,
        op_attempt = input.op_attempt, op_epoch = input.op_epoch, op_takeovers = input.op_takeovers,
        op_started_at = input.op_started_at, deadline_at = input.deadline_at,
        progress_done = input.progress_done, progress_total = input.progress_total,
        generation = input.generation, revision = input.revision, home_seen = input.home_seen,
        archive_key = input.archive_key, archive_generation = input.archive_generation,
        archive_revision = input.archive_revision, archive_root = input.archive_root,
        error_info = input.error_info, error_count = input.error_count, quick_ends = input.quick_ends
    FROM input JOIN free USING (id), fence
    WHERE workspaces.id = input.id
      AND workspaces.version = input.expected_version
      AND workspaces.epoch <= fence.epoch
      AND (input.expected_wish_version IS NULL OR workspaces.wish_version = input.expected_wish_version)
    RETURNING workspaces.id
), closed AS (
    UPDATE operations SET
        ended_at = clock_timestamp(), outcome = input.closed_outcome, reason = input.closed_reason,
        message = input.closed_message, done_bytes = input.closed_bytes
    FROM input JOIN written USING (id)
    WHERE operations.workspace_id = input.id
      AND operations.op_id = input.closed_op_id
      AND operations.attempt = input.closed_attempt
    RETURNING 1
), opened AS (
    INSERT INTO operations (workspace_id, op_id, attempt, kind, generation, epoch, started_at)
    SELECT id, opened_op_id, opened_attempt, opened_kind, opened_generation, $2, clock_timestamp()
    FROM input JOIN written USING (id)
    -- Counting makes the closing come first: one operation at a time.
    WHERE opened_op_id IS NOT NULL AND (SELECT count(*) FROM closed) >= 0
), proved AS (
    INSERT INTO archives (key, workspace_id, op_id, generation, revision, manifest_root, size_bytes, home_bytes, proven_at)
    SELECT archive_key, id, op_id, archive_generation, archive_revision, archive_root,
           proved_size_bytes, proved_home_bytes, clock_timestamp()
    FROM input JOIN written USING (id)
    WHERE proved_size_bytes IS NOT NULL
    ON CONFLICT (key) DO UPDATE SET proven_at = excluded.proven_at
)
SELECT id FROM written;

-- name: latch
-- Too much is missing at this provider; whether an operator has said go already.
INSERT INTO latches (provider, expected, missing) VALUES ($1, $2, $3)
ON CONFLICT (provider) DO UPDATE SET expected = excluded.expected, missing = excluded.missing
RETURNING released_at IS NOT NULL AS is_released;

-- name: unlatch
-- The view has recovered.
DELETE FROM latches WHERE provider = $1;
