-- The statements of home_runtime.py, for the roles torpor_service and torpor_controller.

-- name: hold_switch
-- A move begins or ends alone: no request for a state is written at the same time.
SELECT pg_advisory_xact_lock(hashtext('torpor.switch'));

-- name: hold_no_switch
-- No move begins or ends before this transaction ends.
SELECT pg_advisory_xact_lock_shared(hashtext('torpor.switch'));

-- name: home_runtime
SELECT world, switch_to, switch_began_at FROM home_runtime;

-- name: record_runtime
UPDATE home_runtime SET world = $1;

-- name: begin_switch
UPDATE home_runtime SET switch_to = $1, switch_began_at = clock_timestamp();

-- name: end_switch
UPDATE home_runtime SET switch_to = NULL, switch_began_at = NULL;

-- name: archive_all
-- Request ARCHIVED for all workspaces, and store which state they had. Those that are in that state already are not changed.
UPDATE workspaces SET
    resume_state = desired_state, desired_state = 'ARCHIVED',
    wish_version = wish_version + 1, wish_origin = 'SWITCH', wished_at = now()
WHERE desired_state IN ('RUNNING', 'STANDBY')
RETURNING id::text;

-- name: resume_all
-- Request the stored states again, except for those that cannot run. A workspace whose state a user requested meanwhile has none.
UPDATE workspaces SET
    desired_state = CASE WHEN id = ANY ($1::uuid[]) THEN desired_state ELSE resume_state END,
    wish_version = CASE WHEN id = ANY ($1::uuid[]) THEN wish_version ELSE wish_version + 1 END,
    wish_origin = 'SWITCH', wished_at = now(), last_access_at = now(), resume_state = NULL
WHERE resume_state IS NOT NULL
RETURNING id::text, desired_state;

-- name: count_homes_left
-- The workspaces that have, or may have, a home or a container at the runtime. A volume that was never filled completely is no
-- home: an archived workspace can have one.
SELECT count(*) FROM workspaces
WHERE operation <> 'NONE' OR container_present OR phase NOT IN ('ARCHIVED', 'DELETED')
   OR (phase = 'ARCHIVED' AND home_seen AND (archive_generation, archive_revision) IS DISTINCT FROM (generation, revision));

-- name: count_workspaces
SELECT count(*) AS workspaces, count(*) FILTER (WHERE container_present) AS running
FROM workspaces WHERE phase <> 'DELETED';

-- name: stuck_homes
-- Those of them that do not continue without a user, the oldest first, each with the number of all.
SELECT workspaces.*, users.username AS owner, count(*) OVER () AS total
FROM workspaces JOIN users ON users.id = workspaces.owner_id
WHERE (error_info ->> 'is_terminal')::boolean AND phase NOT IN ('ARCHIVED', 'DELETED')
ORDER BY workspaces.created_at, workspaces.id
LIMIT $1;

-- name: page_of_workspaces
SELECT workspaces.*, users.username AS owner
FROM workspaces JOIN users ON users.id = workspaces.owner_id
WHERE workspaces.deleted_at IS NULL AND workspaces.id > $1
ORDER BY workspaces.id
LIMIT $2;

-- name: controller_elsewhere
SELECT node_id, world FROM controllers WHERE world <> $1 AND expires_at > clock_timestamp() LIMIT 1;
