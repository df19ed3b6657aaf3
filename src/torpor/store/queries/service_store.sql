-- The statements of service_store.py, for the role torpor_service.

-- name: create_workspace
INSERT INTO workspaces (
    id, name, owner_id, template, command, desired_state, standby_ttl_s, archive_ttl_s, before_sleep, environment,
    cpu, memory_mb, disk_mb, image, fork_source
) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)
RETURNING workspaces.*, (SELECT username FROM users WHERE users.id = workspaces.owner_id) AS owner;

-- name: name_reserved_until
-- Until when the name of this workspace is reserved for a user other than its owner; no row when it is not. Runs after the
-- name was written: transactions that were freeing the name have ended by then, because the unique index waits for them.
SELECT freed_names.freed_at + make_interval(secs => $2) AS until
FROM workspaces JOIN freed_names ON freed_names.name = workspaces.name
WHERE workspaces.id = $1
  AND freed_names.owner_id <> workspaces.owner_id
  AND freed_names.freed_at + make_interval(secs => $2) > clock_timestamp();

-- name: workspace_by_id
SELECT workspaces.*, users.username AS owner
FROM workspaces JOIN users ON users.id = workspaces.owner_id
WHERE workspaces.id = $1;

-- name: workspace_by_name
-- Among the workspaces that one user owns or that are shared with them (or all): the existing one with this name, else the
-- one deleted last, the user's own before others. $3 reverses the preference for existing ones.
SELECT workspaces.*, users.username AS owner
FROM workspaces JOIN users ON users.id = workspaces.owner_id
WHERE workspaces.name = $1 AND ($2::uuid IS NULL OR workspaces.owner_id = $2 OR workspaces.shares ? $4::text)
ORDER BY (workspaces.deleted_at IS NULL) <> $3::boolean DESC, workspaces.owner_id = $2 DESC, workspaces.deleted_at DESC
LIMIT 1;

-- name: living_by_name
-- The existing workspace with this name, of any owner.
SELECT workspaces.*, users.username AS owner
FROM workspaces JOIN users ON users.id = workspaces.owner_id
WHERE workspaces.name = $1 AND workspaces.deleted_at IS NULL;

-- name: lock_workspace
-- The row, locked until the wish is written.
SELECT workspaces.*, users.username AS owner
FROM workspaces JOIN users ON users.id = workspaces.owner_id
WHERE workspaces.id = $1
FOR UPDATE OF workspaces;

-- name: lock_visible_by_id
-- The same, if one user owns the workspace or it is shared with them (or any user's).
SELECT workspaces.*, users.username AS owner
FROM workspaces JOIN users ON users.id = workspaces.owner_id
WHERE workspaces.id = $1 AND ($2::uuid IS NULL OR workspaces.owner_id = $2 OR workspaces.shares ? $3::text)
FOR UPDATE OF workspaces;

-- name: lock_visible_by_name
-- The same by name, chosen as `workspace_by_name` chooses. The choice is made before the lock: a workspace that is renamed while
-- this waits is then not found, and another one with the same name is not locked in its place.
SELECT workspaces.*, users.username AS owner
FROM workspaces JOIN users ON users.id = workspaces.owner_id
WHERE workspaces.name = $1 AND workspaces.id = (
    SELECT chosen.id FROM workspaces AS chosen
    WHERE chosen.name = $1 AND ($2::uuid IS NULL OR chosen.owner_id = $2 OR chosen.shares ? $4::text)
    ORDER BY (chosen.deleted_at IS NULL) <> $3::boolean DESC, chosen.owner_id = $2 DESC, chosen.deleted_at DESC
    LIMIT 1
)
FOR UPDATE OF workspaces;

-- name: lock_workspace_if_free
-- The same; no row while another transaction has it locked.
SELECT workspaces.*, users.username AS owner
FROM workspaces JOIN users ON users.id = workspaces.owner_id
WHERE workspaces.id = $1
FOR UPDATE OF workspaces SKIP LOCKED;

-- name: standby_ttls
-- How long each of these can be idle, as of now.
SELECT id::text, standby_ttl_s FROM workspaces WHERE id = ANY ($1::uuid[]);

-- name: list_workspaces
-- A page of the workspaces that one user owns or that are shared with them (or of all), by creation time, without deleted
-- ones.
SELECT workspaces.*, users.username AS owner
FROM workspaces JOIN users ON users.id = workspaces.owner_id
WHERE ($1::uuid IS NULL OR workspaces.owner_id = $1 OR (workspaces.shares <> '{}' AND workspaces.shares ? $6::text))
  AND ($2::text IS NULL OR workspaces.phase = $2)
  AND (workspaces.phase <> 'DELETED' OR $2::text = 'DELETED')
  AND ($3::timestamptz IS NULL OR (workspaces.created_at, workspaces.id) > ($3, $4::uuid))
ORDER BY workspaces.created_at, workspaces.id
LIMIT $5;

-- name: hold_limits
-- Requests to run are admitted one at a time, so that two at the same time cannot exceed a limit.
SELECT pg_advisory_xact_lock(hashtext('torpor.limits'));

-- name: count_running
-- How many other workspaces run or are about to, of this owner (or of this workspace's owner) and of all; and the owner's
-- own limit.
WITH owner AS (SELECT id, max_running FROM users WHERE id = coalesce($1, (SELECT owner_id FROM workspaces WHERE id = $2)))
SELECT count(*) FILTER (WHERE owner_id = (SELECT id FROM owner)) AS of_user,
       count(*) AS overall,
       (SELECT max_running FROM owner) AS allowed_of_user
FROM workspaces
WHERE (desired_state = 'RUNNING' OR container_present OR operation = 'STARTING') AND id <> $2;

-- name: running_of
-- The workspaces of one owner that `count_running` counts.
SELECT name FROM workspaces
WHERE (desired_state = 'RUNNING' OR container_present OR operation = 'STARTING') AND owner_id = $1
ORDER BY name;

-- name: is_known_user
SELECT FROM users WHERE username = $1 AND is_active;

-- name: share_workspace
UPDATE workspaces SET shares = shares || jsonb_build_object($2::text, $3::text) WHERE id = $1;

-- name: unshare_workspace
-- The user's work leases end together with the share.
WITH held AS (DELETE FROM work_leases WHERE workspace_id = $1 AND created_by = $2::text)
UPDATE workspaces SET shares = shares - $2::text WHERE id = $1;

-- name: hold_key
-- Creations with the same key run one at a time.
SELECT pg_advisory_xact_lock(hashtextextended('torpor.creations ' || $1::uuid::text || ' ' || $2::text, 0));

-- name: creation_by_key
SELECT workspace_id, request FROM creations WHERE user_id = $1 AND key = $2;

-- name: remember_creation
-- A client repeats a request soon, so keys older than a day are removed.
WITH old AS (DELETE FROM creations WHERE user_id = $1 AND at < now() - interval '1 day')
INSERT INTO creations (user_id, key, request, workspace_id) VALUES ($1, $2, $3, $4);

-- name: audit_page
-- The entries before this ID, the latest first: by one user and about the workspaces that they own (or all), by a user name,
-- and about one workspace by its ID or by the name that it had.
SELECT id, at, username, user_id, how, token_label, came_from, action, workspace_id, workspace, outcome, detail
FROM audit
WHERE ($1::bigint IS NULL OR id < $1)
  AND ($2::uuid IS NULL OR user_id = $2
       OR workspace_id = ANY (ARRAY(SELECT workspaces.id FROM workspaces WHERE owner_id = $2)))
  AND ($3::text IS NULL OR username = $3)
  AND ($4::uuid IS NULL OR workspace_id = $4)
  AND ($5::text IS NULL OR workspace = $5)
ORDER BY id DESC
LIMIT $6;

-- name: set_wish
-- A repeated wish counts as a new one: it clears errors. An automatic stop does not count as use. A deletion withdraws a
-- restore.
UPDATE workspaces SET
    desired_state = $2::text,
    wish_version = wish_version + 1,
    wish_origin = $4::text,
    wished_at = now(),
    last_access_at = CASE WHEN $4::text = 'IDLE' THEN last_access_at ELSE now() END,
    resume_state = NULL,
    restore_request = CASE WHEN $2::text <> 'DELETED' THEN restore_request END,
    deleted_at = CASE WHEN $2::text = 'DELETED' THEN coalesce(deleted_at, now()) END,
    purge = $2::text = 'DELETED' AND (purge OR $3)
WHERE id = $1
RETURNING workspaces.*, (SELECT username FROM users WHERE users.id = workspaces.owner_id) AS owner;

-- name: change_workspace
-- All given values as one change; NULL keeps the current value. NULL is a value of before_sleep, so $6 says whether that
-- changes. Not for deleted workspaces.
UPDATE workspaces SET
    name = coalesce($2::text, name),
    standby_ttl_s = coalesce($3::integer, standby_ttl_s),
    archive_ttl_s = coalesce($4::integer, archive_ttl_s),
    before_sleep = CASE WHEN $6::boolean THEN $7::text[] ELSE before_sleep END,
    environment = coalesce($8::jsonb, environment),
    desired_state = coalesce($5::text, desired_state),
    resume_state = CASE WHEN $5::text IS NULL THEN resume_state END,
    wish_version = CASE WHEN $5::text IS NULL THEN wish_version ELSE wish_version + 1 END,
    wish_origin = CASE WHEN $5::text IS NULL THEN wish_origin ELSE 'PERSON' END,
    wished_at = CASE WHEN $5::text IS NULL THEN wished_at ELSE now() END,
    last_access_at = CASE WHEN $5::text IS NULL THEN last_access_at ELSE now() END
WHERE id = $1
RETURNING workspaces.*, (SELECT username FROM users WHERE users.id = workspaces.owner_id) AS owner;

-- name: set_recovery
-- A recovery from an error, which the controller carries out. A chosen home ($3) withdraws a restore.
UPDATE workspaces SET
    wish_version = wish_version + 1,
    wish_origin = 'PERSON',
    wished_at = now(),
    last_access_at = now(),
    restore_request = CASE WHEN NOT $3 THEN restore_request END,
    recover_request = $2::jsonb || jsonb_build_object('wish_version', wish_version + 1)
WHERE id = $1
RETURNING workspaces.*, (SELECT username FROM users WHERE users.id = workspaces.owner_id) AS owner;

-- name: set_restore
-- A request to replace the home by an older archive, which the controller carries out. The requested state stays.
UPDATE workspaces SET
    wish_version = wish_version + 1,
    last_access_at = now(),
    restore_request = jsonb_build_object('archive', $2::jsonb, 'wish_version', wish_version + 1, 'asked_at', now())
WHERE id = $1
RETURNING workspaces.*, (SELECT username FROM users WHERE users.id = workspaces.owner_id) AS owner;

-- name: cancel_restore
-- The new wish_version refuses a controller that is about to carry it out.
UPDATE workspaces SET wish_version = wish_version + 1, last_access_at = now(), restore_request = NULL
WHERE id = $1
RETURNING workspaces.*, (SELECT username FROM users WHERE users.id = workspaces.owner_id) AS owner;

-- name: operations_of
-- A page of the attempts, the latest first.
SELECT op_id, kind, attempt, generation, started_at, ended_at, outcome, reason, message, done_bytes
FROM operations
WHERE workspace_id = $1 AND ($3::timestamptz IS NULL OR (started_at, op_id, attempt) < ($3, $4::uuid, $5::integer))
ORDER BY started_at DESC, op_id DESC, attempt DESC
LIMIT $2;

-- name: archives_of
-- Archives that can still be restored, the latest first.
SELECT key, op_id, generation, revision, manifest_root, size_bytes, home_bytes, format, new_bytes, made_at,
       last_proven_at(archives) AS proven_at, is_damaged(archives) AS is_damaged
FROM archives, LATERAL (
    SELECT least(archives.proven_at, (
        SELECT max(started_at) FROM operations
        WHERE operations.workspace_id = archives.workspace_id AND operations.op_id = archives.op_id
    )) AS made_at
) AS made
WHERE workspace_id = $1 AND orphan_since IS NULL
ORDER BY made_at DESC, key DESC;

-- name: latches
-- Providers with so many missing homes that nothing is changed there.
SELECT provider, since, expected, missing, released_at FROM latches ORDER BY provider;

-- name: release_latch
-- An operator allows changes at this provider again.
UPDATE latches SET released_at = now() WHERE provider = $1 RETURNING provider;

-- name: now
-- The database's clock is the only one that counts.
SELECT clock_timestamp() AS now;

-- name: standby_due
-- A page of running workspaces that are due to stop, or so near to it that their users are warned, by due time. They may
-- still be in use, or kept awake a little longer.
SELECT workspaces.*, users.username AS owner, clock_timestamp() AS now,
       warned_from(last_access_at, phase_changed_at, wished_at, standby_ttl_s) AS due
FROM workspaces JOIN users ON users.id = workspaces.owner_id
WHERE phase = 'RUNNING' AND desired_state = 'RUNNING' AND operation = 'NONE'
  AND warned_from(last_access_at, phase_changed_at, wished_at, standby_ttl_s) <= now() AT TIME ZONE 'UTC'
  AND (warned_from(last_access_at, phase_changed_at, wished_at, standby_ttl_s), workspaces.id)
      > (coalesce($1::timestamp, '-infinity'), $2::uuid)
  AND NOT EXISTS (
      SELECT FROM work_leases
      WHERE workspace_id = workspaces.id AND expires_at > now() + make_interval(secs => warning_s(standby_ttl_s))
  )
ORDER BY due, workspaces.id
LIMIT $3;

-- name: next_standby_due
-- In how many seconds the next workspace is due that is not due yet.
SELECT extract(epoch FROM warned_from(last_access_at, phase_changed_at, wished_at, standby_ttl_s)
                          - (clock_timestamp() AT TIME ZONE 'UTC'))::double precision AS in_s
FROM workspaces
WHERE phase = 'RUNNING' AND desired_state = 'RUNNING' AND operation = 'NONE'
  AND warned_from(last_access_at, phase_changed_at, wished_at, standby_ttl_s) > now() AT TIME ZONE 'UTC'
ORDER BY warned_from(last_access_at, phase_changed_at, wished_at, standby_ttl_s), id
LIMIT 1;

-- name: set_sleeps_at
-- Store when each of these will be stopped, or that this is no longer near. Workspaces that were requested to run or kept
-- awake meanwhile are left out, and so are rows that another transaction has locked: they are due again later.
UPDATE workspaces SET sleeps_at = warned.at
FROM (
    SELECT workspaces.id, told.at
    FROM unnest($1::uuid[], $2::bigint[], $3::timestamptz[], $4::timestamptz[]) AS told (id, wish_version, known, at)
    JOIN workspaces ON workspaces.id = told.id
    WHERE workspaces.wish_version = told.wish_version AND workspaces.sleeps_at IS NOT DISTINCT FROM told.known
      AND NOT EXISTS (SELECT FROM work_leases WHERE workspace_id = workspaces.id AND expires_at > told.at)
    FOR UPDATE OF workspaces SKIP LOCKED
) AS warned
WHERE workspaces.id = warned.id;

-- name: take_warning_back
-- The workspace is kept awake beyond the time that its users were warned of.
UPDATE workspaces SET sleeps_at = NULL WHERE id = $1 AND sleeps_at < $2;

-- name: archive_due
-- A page of workspaces that have been stopped for long enough, by due time.
SELECT workspaces.*, users.username AS owner, clock_timestamp() AS now,
       (greatest(last_access_at, phase_changed_at) AT TIME ZONE 'UTC') + make_interval(secs => archive_ttl_s) AS due
FROM workspaces JOIN users ON users.id = workspaces.owner_id
WHERE phase = 'STANDBY' AND desired_state = 'STANDBY' AND operation = 'NONE'
  AND (greatest(last_access_at, phase_changed_at) AT TIME ZONE 'UTC') + make_interval(secs => archive_ttl_s)
      <= now() AT TIME ZONE 'UTC'
  AND ((greatest(last_access_at, phase_changed_at) AT TIME ZONE 'UTC') + make_interval(secs => archive_ttl_s),
       workspaces.id) > (coalesce($1::timestamp, '-infinity'), $2::uuid)
ORDER BY due, workspaces.id
LIMIT $3;

-- name: touch_access
-- Store when each of these was last used. Rows that another transaction has locked are left out: the next call writes them.
UPDATE workspaces SET last_access_at = used.at
FROM (
    SELECT workspaces.id, now() - make_interval(secs => told.ago_s) AS at
    FROM unnest($1::uuid[], $2::double precision[]) AS told (id, ago_s) JOIN workspaces ON workspaces.id = told.id
    WHERE now() - make_interval(secs => told.ago_s) > workspaces.last_access_at + interval '1 second'
    FOR UPDATE OF workspaces SKIP LOCKED
) AS used
WHERE workspaces.id = used.id;

-- name: touch_in_use
-- These are in use now and for at least this many seconds. If a TTL is shorter than that, the stored time lies in the
-- future.
UPDATE workspaces SET last_access_at = used.at
FROM (
    SELECT id, clock_timestamp() + make_interval(secs => greatest(0, $2::double precision - standby_ttl_s)) AS at
    FROM workspaces
    WHERE id = ANY ($1::uuid[])
    FOR UPDATE SKIP LOCKED
) AS used
WHERE workspaces.id = used.id AND used.at > workspaces.last_access_at + interval '1 second';

-- name: touch_stopped
-- A controller reports that these were in use until now. Reports of a controller whose life has expired are ignored.
UPDATE workspaces SET last_access_at = now()
FROM (SELECT id FROM workspaces WHERE id = ANY ($1::uuid[]) FOR UPDATE SKIP LOCKED) AS free
WHERE workspaces.id = free.id AND workspaces.last_access_at < now()
  AND EXISTS (SELECT FROM controllers WHERE epoch = $2 AND expires_at > clock_timestamp());

-- name: create_work_lease
INSERT INTO work_leases (id, workspace_id, reason, created_by, created_at, expires_at)
SELECT $1, $2, $3, $4, now, now + make_interval(secs => $5::double precision) FROM clock_timestamp() AS now
RETURNING *;

-- name: work_leases_of
-- The leases that are still valid, the first to expire first.
SELECT * FROM work_leases WHERE workspace_id = $1 AND expires_at > clock_timestamp() ORDER BY expires_at, id;

-- name: work_leases_of_all
-- The same for several workspaces.
SELECT * FROM work_leases WHERE workspace_id = ANY ($1::uuid[]) AND expires_at > clock_timestamp() ORDER BY expires_at, id;

-- name: delete_expired_work_leases
DELETE FROM work_leases WHERE workspace_id = $1 AND expires_at <= clock_timestamp();

-- name: delete_work_leases
-- One or all of a workspace's leases, of one user or of all.
DELETE FROM work_leases
WHERE workspace_id = $1 AND ($2::uuid IS NULL OR id = $2) AND ($3::text IS NULL OR created_by = $3)
RETURNING id;

-- name: secrets_of
-- Without the values, which this role cannot read.
SELECT name, set_at, value_bytes FROM secrets WHERE workspace_id = $1 ORDER BY name;

-- name: add_secret
INSERT INTO secrets (workspace_id, name, sealed, key_id, value_bytes) VALUES ($1, $2, $3, $4, $5)
RETURNING name, set_at, value_bytes;

-- name: remove_secret
DELETE FROM secrets WHERE workspace_id = $1 AND name = $2 RETURNING name;

-- name: remove_secrets
DELETE FROM secrets WHERE workspace_id = $1;

-- name: remember_key
-- The first key file that this database was used with stays its key, unless another one is accepted.
UPDATE housekeeping SET secret_key_id = CASE WHEN $2 THEN $1 ELSE coalesce(secret_key_id, $1) END RETURNING secret_key_id;

-- name: has_workspaces
SELECT EXISTS (SELECT FROM workspaces) AS has;
