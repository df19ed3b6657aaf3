-- The statements of archive_leases.py, for all roles.

-- name: hold_for_lease
-- Waits for a transaction that marks or removes packs of this workspace.
SELECT id FROM workspaces WHERE id = $1 FOR SHARE;

-- name: begin_lease
INSERT INTO archive_leases (id, workspace_id, reason, expires_at)
VALUES ($1, $2, $3, clock_timestamp() + make_interval(secs => $4::double precision));

-- name: renew_lease
UPDATE archive_leases SET expires_at = clock_timestamp() + make_interval(secs => $2::double precision)
WHERE id = $1 AND expires_at > clock_timestamp() RETURNING id;

-- name: end_lease
DELETE FROM archive_leases WHERE id = $1;
