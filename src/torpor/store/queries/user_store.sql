-- The statements of user_store.py, for the role torpor_service.

-- name: user_by_id
SELECT * FROM users WHERE id = $1;

-- name: user_by_name
SELECT * FROM users WHERE username = $1;

-- name: user_by_subject
-- The user that a provider identifies by this subject.
SELECT * FROM users WHERE issuer = $1 AND subject = $2;

-- name: list_users
SELECT * FROM users WHERE username > $1 ORDER BY username LIMIT $2;

-- name: taken_names
SELECT username FROM users WHERE username = ANY ($1::text[]);

-- name: create_user
-- No row when the name or the provider's subject exists already; the existing user is not changed.
INSERT INTO users (id, username, is_admin, password, max_running, issuer, subject) VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT DO NOTHING
RETURNING *;

-- name: lock_user
-- Other transactions can still refer to the user meanwhile.
SELECT * FROM users WHERE id = $1 FOR NO KEY UPDATE;

-- name: lock_administrators
-- Administrators that can sign in. No other transaction changes who they are before this one ends.
SELECT id FROM users
WHERE is_admin AND is_active AND (password IS NOT NULL OR issuer IS NOT NULL)
ORDER BY id FOR NO KEY UPDATE;

-- name: administrators
-- Active administrators, with or without a password.
SELECT username FROM users WHERE is_admin AND is_active;

-- name: hold_registry
-- No controller joins and no other user can sign in before this transaction ends (the same lock as in
-- `controller_store.sql`).
SELECT pg_advisory_xact_lock(hashtext('torpor.controllers'));

-- name: count_users
-- Users that can sign in.
SELECT count(*) FROM users WHERE is_active;

-- name: change_user
UPDATE users SET is_admin = $2, is_active = $3, max_running = $4 WHERE id = $1 RETURNING *;

-- name: set_password
UPDATE users SET password = $2, is_one_time = $3 WHERE id = $1;

-- name: recognise
-- The user of this credential, unless it has expired or the user is deactivated.
SELECT tokens.*, users.username, users.is_admin, users.is_active, users.max_running,
       (tokens.last_used_at IS NULL OR tokens.last_used_at < now() - interval '1 minute') AS is_used_anew
FROM tokens JOIN users ON users.id = tokens.user_id
WHERE tokens.digest = $1 AND users.is_active AND (tokens.expires_at IS NULL OR tokens.expires_at > clock_timestamp());

-- name: recognise_again
-- The same for a credential that was recognised before.
SELECT tokens.*, users.username, users.is_admin, users.is_active, users.max_running, false AS is_used_anew
FROM tokens JOIN users ON users.id = tokens.user_id
WHERE tokens.id = $1 AND users.is_active AND (tokens.expires_at IS NULL OR tokens.expires_at > clock_timestamp());

-- name: used_now
-- If another transaction has the row locked, that one stores the same time.
UPDATE tokens SET last_used_at = now()
FROM (SELECT id FROM tokens WHERE id = $1 FOR UPDATE SKIP LOCKED) AS free
WHERE tokens.id = free.id;

-- name: create_credential
-- Only the digest is stored. It expires after this many seconds, and at this time at the latest; without either it does not
-- expire.
INSERT INTO tokens (id, user_id, kind, label, digest, scopes, made_from, user_agent, expires_at, creator_id)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, LEAST(now() + make_interval(secs => $9::double precision), $10::timestamptz), $11)
RETURNING *;

-- name: hold_credential
-- The credential is still valid, and stays so until this transaction ends.
SELECT * FROM tokens WHERE id = $1 AND (expires_at IS NULL OR expires_at > clock_timestamp()) FOR KEY SHARE;

-- name: create_door
-- Only for a session that is still valid; it expires together with the session.
INSERT INTO tokens (id, user_id, kind, label, digest, parent_id, workspace_id, made_from, user_agent, expires_at)
SELECT $1, session.user_id, 'DOOR', 'door', $2, session.id, $3, $4, $5, session.expires_at
FROM tokens AS session
WHERE session.id = $6 AND session.kind = 'SESSION' AND session.expires_at > clock_timestamp()
FOR KEY SHARE OF session
RETURNING id;

-- name: credentials_of
-- The valid ones of one kind, the newest first.
SELECT * FROM tokens
WHERE user_id = $1 AND kind = $2 AND (expires_at IS NULL OR expires_at > clock_timestamp())
ORDER BY created_at DESC, id;

-- name: lock_credentials
-- No door or token is created with any of the user's sessions and tokens before this transaction ends. Locks the oldest
-- first: a creator before its tokens, in the order in which deletions cascade.
SELECT id FROM tokens WHERE user_id = $1 AND kind <> 'DOOR' ORDER BY created_at, id FOR UPDATE;

-- name: end_credential
-- The credential, every door that was opened with it, and every token that was created with it, directly or indirectly.
WITH RECURSIVE created AS (
         SELECT id FROM tokens WHERE parent_id = $1 OR creator_id = $1
         UNION
         SELECT tokens.id FROM tokens JOIN created ON tokens.creator_id = created.id
     ),
     ended AS (DELETE FROM tokens WHERE id = $1 AND user_id = $2 AND kind = $3 RETURNING id, label)
SELECT ended.id, ended.label, ARRAY(SELECT created.id FROM created) AS created FROM ended;

-- name: forget_creator
-- Keeps a token whose creator is revoked.
UPDATE tokens SET creator_id = NULL WHERE id = $1 AND user_id = $2;

-- name: end_credentials
-- All credentials of these kinds of a user, except one (or none) and the doors that were opened with it.
DELETE FROM tokens
WHERE user_id = $1 AND kind = ANY ($2::text[]) AND ($3::uuid IS NULL OR (id <> $3 AND parent_id IS DISTINCT FROM $3))
RETURNING id;

-- name: end_oldest_sessions
-- The sessions beyond this number, with the doors that were opened with them.
WITH old AS (SELECT id FROM tokens WHERE user_id = $1 AND kind = 'SESSION' ORDER BY created_at DESC, id OFFSET $2)
DELETE FROM tokens WHERE id IN (SELECT id FROM old) OR parent_id IN (SELECT id FROM old)
RETURNING id;

-- name: end_oldest_doors
-- The doors of one session at one workspace beyond this number.
DELETE FROM tokens WHERE id IN (
    SELECT id FROM tokens WHERE parent_id = $1 AND workspace_id = $2
    ORDER BY created_at DESC, id OFFSET $3 FOR UPDATE SKIP LOCKED
)
RETURNING id;

-- name: delete_expired
-- Locked rows are skipped until the next time. Doors are deleted together with their session, which is always locked first.
DELETE FROM tokens WHERE id IN (
    SELECT id FROM tokens WHERE expires_at < now() AND kind <> 'DOOR' ORDER BY id FOR UPDATE SKIP LOCKED
);

-- name: delete_expired_sign_in_codes
DELETE FROM sign_in_codes WHERE expires_at < now();

-- name: delete_expired_codes
DELETE FROM door_codes WHERE digest IN (SELECT digest FROM door_codes WHERE expires_at < now() FOR UPDATE SKIP LOCKED);

-- name: delete_tokens_labelled
-- All except this one; with every token that was created with them, directly or indirectly.
WITH RECURSIVE ended AS (
    SELECT id FROM tokens WHERE user_id = $1 AND kind = 'TOKEN' AND label = $2 AND digest <> $3
    UNION
    SELECT tokens.id FROM tokens JOIN ended ON tokens.creator_id = ended.id
)
DELETE FROM tokens WHERE id IN (SELECT id FROM ended) RETURNING id;

-- name: ensure_token
-- Make this token valid for everything that its user can do, also if it was changed before.
INSERT INTO tokens (id, user_id, label, digest, scopes) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (digest) DO UPDATE
    SET user_id = excluded.user_id, label = excluded.label, scopes = excluded.scopes, expires_at = NULL
    WHERE tokens.kind = 'TOKEN';

-- name: create_door_code
-- Only for a session that is still valid.
INSERT INTO door_codes (digest, session_id, workspace_id, nonce, expires_at)
SELECT $1, session.id, $3, $4, clock_timestamp() + make_interval(secs => $5::double precision)
FROM tokens AS session
WHERE session.id = $2 AND session.kind = 'SESSION' AND session.expires_at > clock_timestamp()
FOR KEY SHARE OF session
RETURNING digest;

-- name: drop_oldest_codes
-- The codes of one session beyond this number.
DELETE FROM door_codes WHERE digest IN (
    SELECT digest FROM door_codes WHERE session_id = $1 ORDER BY expires_at DESC, digest OFFSET $2 FOR UPDATE SKIP LOCKED
);

-- name: hold_session_of_code
-- A transaction that ends a session locks it and then deletes its codes and doors. Another order here could deadlock with
-- it.
SELECT session.id FROM door_codes JOIN tokens AS session ON session.id = door_codes.session_id
WHERE door_codes.digest = $1
FOR KEY SHARE OF session;

-- name: take_door_code
-- It is valid once, also if the sign-in then fails.
DELETE FROM door_codes WHERE digest = $1
RETURNING session_id, workspace_id, nonce, expires_at > clock_timestamp() AS is_fresh;

-- name: create_sign_in_code
INSERT INTO sign_in_codes (digest, user_id, expires_at)
VALUES ($1, $2, clock_timestamp() + make_interval(secs => $3::double precision));

-- name: take_sign_in_code
-- It is valid once, also if it has expired.
DELETE FROM sign_in_codes WHERE digest = $1 RETURNING user_id, expires_at > clock_timestamp() AS is_fresh;

-- name: drop_sign_in_codes
DELETE FROM sign_in_codes WHERE user_id = $1;

-- name: audit
-- One entry of the audit log. Names are stored as they are at this moment.
INSERT INTO audit (username, user_id, how, token_label, came_from, action, workspace_id, workspace, outcome, detail)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10);
