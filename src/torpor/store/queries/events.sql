-- What the leader (as torpor_controller) and the API (as torpor_service) do with what changed.

-- name: hold_counter
-- One numbers at a time, and sees all that was committed before; and whose events they are.
SELECT installation.id FROM event_counter, installation FOR UPDATE OF event_counter;

-- name: number_events
-- The next ids, in the order in which it was written down, for what has none; each workspace as it was then.
WITH next AS MATERIALIZED (
    SELECT seq, row_number() OVER (ORDER BY seq) AS place
    FROM (SELECT seq FROM outbox WHERE event_id IS NULL ORDER BY seq LIMIT $1) AS first
), counter AS (
    UPDATE event_counter SET last_id = last_id + (SELECT count(*) FROM next)
    RETURNING last_id - (SELECT count(*) FROM next) AS before
), numbered AS (
    UPDATE outbox SET event_id = counter.before + next.place
    FROM next, counter
    WHERE outbox.seq = next.seq
    RETURNING outbox.event_id, outbox.seq, outbox.kind, outbox.at, outbox.workspace_id, outbox.row
)
SELECT numbered.event_id, numbered.seq, numbered.kind, numbered.at, numbered.workspace_id,
       numbered.row -> 'unshared' AS unshared,
       coalesce(users.username, '') AS owner, told.*
FROM numbered
LEFT JOIN workspaces AS present ON present.id = numbered.workspace_id
CROSS JOIN LATERAL as_it_was(present, numbered.row) AS told
LEFT JOIN users ON users.id = told.owner_id
ORDER BY numbered.event_id;

-- name: count_unnumbered
-- How many wait for their ids, counted up to this.
SELECT count(*) FROM (SELECT FROM outbox WHERE event_id IS NULL LIMIT $1) AS waiting;

-- name: prune_events
-- The oldest ones, as far as they are older than this (seconds); a reader who has not seen them yet must begin anew.
WITH first AS (
    SELECT event_id, at FROM outbox
    WHERE event_id > (SELECT pruned_id FROM event_counter)
    ORDER BY event_id LIMIT $2
), bound AS (
    SELECT max(event_id) AS id FROM first WHERE at < clock_timestamp() - make_interval(secs => $1::double precision)
), gone AS (
    DELETE FROM outbox USING bound WHERE outbox.event_id <= bound.id RETURNING 1
), counter AS (
    UPDATE event_counter SET pruned_id = bound.id FROM bound WHERE bound.id IS NOT NULL
)
SELECT count(*) AS pruned FROM gone;

-- name: newest_event
-- The last id given out, the last one that is not kept any more, the time, and whose they are.
SELECT last_id, pruned_id, clock_timestamp() AS at, installation.id AS installation FROM event_counter, installation;

-- name: events_after
-- What came later than this, of one workspace, of what one user owns or is granted, or of all; with what the counter said at
-- the same moment. Each branch has its own index, and those not asked for are not even begun.
WITH later AS MATERIALIZED (
    SELECT event_id FROM (
        (SELECT event_id FROM outbox
         WHERE $2::uuid IS NOT NULL AND workspace_id = $2 AND event_id > $1 ORDER BY event_id LIMIT $4)
        UNION ALL
        (SELECT event_id FROM outbox
         WHERE $3::uuid IS NOT NULL AND owner_id = $3 AND event_id > $1 ORDER BY event_id LIMIT $4)
        UNION ALL
        (SELECT event_id FROM outbox
         WHERE $3::uuid IS NOT NULL AND owner_id <> $3 AND event_id > $1
           AND ("row" -> 'shares' <> '{}' OR "row" ? 'unshared')
           AND ("row" -> 'shares' ? $5::text OR "row" -> 'unshared' ? $5::text)
         ORDER BY event_id LIMIT $4)
        UNION ALL
        (SELECT event_id FROM outbox
         WHERE num_nonnulls($2::uuid, $3::uuid) = 0 AND event_id > $1 ORDER BY event_id LIMIT $4)
    ) AS found
    ORDER BY event_id LIMIT $4
)
SELECT counter.last_id, counter.pruned_id, event.*
FROM event_counter AS counter
LEFT JOIN (
    SELECT outbox.event_id, outbox.seq, outbox.kind, outbox.at, outbox.workspace_id, outbox.row -> 'unshared' AS unshared,
           coalesce(users.username, '') AS owner, told.*
    FROM later JOIN outbox USING (event_id)
    LEFT JOIN workspaces AS present ON present.id = outbox.workspace_id
    CROSS JOIN LATERAL as_it_was(present, outbox.row) AS told
    LEFT JOIN users ON users.id = told.owner_id
) AS event ON true
ORDER BY event.event_id;

-- name: workspace_now
-- How it stands, the last event that is in it for certain, and the last change in it that has no id yet.
SELECT event_counter.last_id, clock_timestamp() AS at, workspaces.*, users.username AS owner,
       coalesce((SELECT max(seq) FROM outbox WHERE workspace_id = $1 AND event_id IS NULL), 0) AS seq
FROM workspaces JOIN users ON users.id = workspaces.owner_id, event_counter
WHERE workspaces.id = $1;

-- name: workspaces_now
-- A page of how those stand that one user owns or is granted (or all), in the order of their creation, without those that are
-- gone; with the last change in each that has no id yet, or one after this.
SELECT workspaces.*, users.username AS owner, greatest(
           (SELECT max(seq) FROM outbox WHERE workspace_id = workspaces.id AND event_id IS NULL),
           (SELECT max(seq) FROM outbox WHERE workspace_id = workspaces.id AND event_id > $1),
           0) AS seq
FROM workspaces JOIN users ON users.id = workspaces.owner_id
WHERE ($2::uuid IS NULL OR workspaces.owner_id = $2 OR (workspaces.shares <> '{}' AND workspaces.shares ? $6::text))
  AND workspaces.phase <> 'DELETED'
  AND ($3::timestamptz IS NULL OR (workspaces.created_at, workspaces.id) > ($3, $4::uuid))
ORDER BY workspaces.created_at, workspaces.id
LIMIT $5;
