-- The statements of events.py: the leader numbers events as torpor_controller; the API reads them as torpor_service.

-- name: hold_counter
-- One process at a time numbers events, and sees everything that was committed before. Returns the installation that the
-- events belong to.
SELECT installation.id FROM event_counter, installation FOR UPDATE OF event_counter;

-- name: number_events
-- Give the next IDs to changes that have none, in the order in which they were written, and return each with the workspace
-- as it was then.
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
-- How many changes wait for their IDs, counted up to this limit.
SELECT count(*) FROM (SELECT FROM outbox WHERE event_id IS NULL LIMIT $1) AS waiting;

-- name: prune_events
-- Remove the oldest events, if they are older than this many seconds. A reader that has not seen them yet must start over.
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
-- The last ID given, the last ID that is no longer stored, the time, and the installation.
SELECT last_id, pruned_id, clock_timestamp() AS at, installation.id AS installation FROM event_counter, installation;

-- name: events_after
-- The events after this ID: of one workspace, of the workspaces that one user owns or that are shared with them, or of all;
-- and the counter at the same moment. Each branch has its own index, and branches that were not asked for are not executed.
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
-- The workspace, the last event that it certainly includes, and the last change in it that has no ID yet.
SELECT event_counter.last_id, clock_timestamp() AS at, workspaces.*, users.username AS owner,
       coalesce((SELECT max(seq) FROM outbox WHERE workspace_id = $1 AND event_id IS NULL), 0) AS seq
FROM workspaces JOIN users ON users.id = workspaces.owner_id, event_counter
WHERE workspaces.id = $1;

-- name: workspaces_now
-- A page of the workspaces that one user owns or that are shared with them (or of all), by creation time, without deleted
-- ones; each with the last change in it that has no ID yet, or has one after this ID.
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
