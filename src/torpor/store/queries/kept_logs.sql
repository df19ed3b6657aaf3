-- name: keep
INSERT INTO kept_logs (workspace_id, lines) VALUES ($1, $2)
ON CONFLICT (workspace_id) DO UPDATE SET lines = excluded.lines, kept_at = clock_timestamp();

-- name: read
SELECT lines FROM kept_logs WHERE workspace_id = $1;
