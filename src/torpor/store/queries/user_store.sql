-- People, and everything by which they are recognised, as the role torpor_service.

-- name: user_by_id
SELECT * FROM users WHERE id = $1;

-- name: user_by_name
SELECT * FROM users WHERE username = $1;

-- name: user_by_subject
-- Whom a provider means.
SELECT * FROM users WHERE issuer = $1 AND subject = $2;

-- name: list_users
SELECT * FROM users WHERE username > $1 ORDER BY username LIMIT $2;

-- name: taken_names
SELECT username FROM users WHERE username = ANY ($1::text[]);

-- name: create_user
-- An existing name stays as it is, and so does whoever a provider has sent before.
INSERT INTO users (id, username, is_admin, password, max_running, issuer, subject) VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT DO NOTHING
RETURNING *;

-- name: lock_user
-- Others may go on referring to it meanwhile.
SELECT * FROM users WHERE id = $1 FOR NO KEY UPDATE;

-- name: lock_administrators
-- Those that can still sign in; nobody else changes who they are before this transaction has ended.
SELECT id FROM users
WHERE is_admin AND is_active AND (password IS NOT NULL OR issuer IS NOT NULL)
ORDER BY id FOR NO KEY UPDATE;

-- name: administrators
-- Those that are active, whether or not they have a password.
SELECT username FROM users WHERE is_admin AND is_active;

-- name: hold_registry
-- No controller joins and no other user is let in before this transaction has ended (the same lock as in `for_controller.sql`).
SELECT pg_advisory_xact_lock(hashtext('torpor.controllers'));

-- name: count_users
-- Those that can sign in.
SELECT count(*) FROM users WHERE is_active;

-- name: change_user
UPDATE users SET is_admin = $2, is_active = $3, max_running = $4 WHERE id = $1 RETURNING *;

-- name: set_password
UPDATE users SET password = $2, is_one_time = $3 WHERE id = $1;

-- name: recognise
-- Who holds this, unless it has expired or they may not come in any more.
SELECT tokens.*, users.username, users.is_admin, users.is_active, users.max_running,
       (tokens.last_used_at IS NULL OR tokens.last_used_at < now() - interval '1 minute') AS is_used_anew
FROM tokens JOIN users ON users.id = tokens.user_id
WHERE tokens.digest = $1 AND users.is_active AND (tokens.expires_at IS NULL OR tokens.expires_at > clock_timestamp());

-- name: recognise_again
-- The same for one that was recognised before.
SELECT tokens.*, users.username, users.is_admin, users.is_active, users.max_running, false AS is_used_anew
FROM tokens JOIN users ON users.id = tokens.user_id
WHERE tokens.id = $1 AND users.is_active AND (tokens.expires_at IS NULL OR tokens.expires_at > clock_timestamp());

-- name: used_now
-- A row that somebody else is writing just now says so anyway.
UPDATE tokens SET last_used_at = now()
FROM (SELECT id FROM tokens WHERE id = $1 FOR UPDATE SKIP LOCKED) AS free
WHERE tokens.id = free.id;

-- name: create_credential
-- Only the digest is kept. It ends after so long, and by then at the latest; without either it has no end.
INSERT INTO tokens (id, user_id, kind, label, digest, scopes, made_from, user_agent, expires_at, creator_id)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, LEAST(now() + make_interval(secs => $9::double precision), $10::timestamptz), $11)
RETURNING *;

-- name: hold_credential
-- It is still good, and does not end before this transaction has.
SELECT * FROM tokens WHERE id = $1 AND (expires_at IS NULL OR expires_at > clock_timestamp()) FOR KEY SHARE;

-- name: create_door
-- By leave of a session that still holds, and for no longer than that.
INSERT INTO tokens (id, user_id, kind, label, digest, parent_id, workspace_id, made_from, user_agent, expires_at)
SELECT $1, session.user_id, 'DOOR', 'door', $2, session.id, $3, $4, $5, session.expires_at
FROM tokens AS session
WHERE session.id = $6 AND session.kind = 'SESSION' AND session.expires_at > clock_timestamp()
FOR KEY SHARE OF session
RETURNING id;

-- name: credentials_of
-- Of one kind, the newest first; what has expired is none any more.
SELECT * FROM tokens
WHERE user_id = $1 AND kind = $2 AND (expires_at IS NULL OR expires_at > clock_timestamp())
ORDER BY created_at DESC, id;

-- name: lock_credentials
-- No further door or token is created with any of a user's sessions and tokens before this transaction has ended. The oldest
-- first: a creator is locked before its tokens, in the order in which deletions cascade.
SELECT id FROM tokens WHERE user_id = $1 AND kind <> 'DOOR' ORDER BY created_at, id FOR UPDATE;

-- name: end_credential
-- It, every door that was opened by its leave, and every token that was created with it, directly or not.
WITH RECURSIVE created AS (
         SELECT id FROM tokens WHERE parent_id = $1 OR creator_id = $1
         UNION
         SELECT tokens.id FROM tokens JOIN created ON tokens.creator_id = created.id
     ),
     ended AS (DELETE FROM tokens WHERE id = $1 AND user_id = $2 AND kind = $3 RETURNING id, label)
SELECT ended.id, ended.label, ARRAY(SELECT created.id FROM created) AS created FROM ended;

-- name: forget_creator
-- A token that is kept while its creator is revoked.
UPDATE tokens SET creator_id = NULL WHERE id = $1 AND user_id = $2;

-- name: end_credentials
-- Every one of a user of these kinds, but one (or none) with the doors that were opened by its leave.
DELETE FROM tokens
WHERE user_id = $1 AND kind = ANY ($2::text[]) AND ($3::uuid IS NULL OR (id <> $3 AND parent_id IS DISTINCT FROM $3))
RETURNING id;

-- name: end_oldest_sessions
-- Beyond so many, with the doors that were opened by their leave.
WITH old AS (SELECT id FROM tokens WHERE user_id = $1 AND kind = 'SESSION' ORDER BY created_at DESC, id OFFSET $2)
DELETE FROM tokens WHERE id IN (SELECT id FROM old) OR parent_id IN (SELECT id FROM old)
RETURNING id;

-- name: end_oldest_doors
-- Of one session at one workspace, beyond so many.
DELETE FROM tokens WHERE id IN (
    SELECT id FROM tokens WHERE parent_id = $1 AND workspace_id = $2
    ORDER BY created_at DESC, id OFFSET $3 FOR UPDATE SKIP LOCKED
)
RETURNING id;

-- name: delete_expired
-- Whatever somebody else is busy with can wait. Doors go with their session, which is held before them as everywhere.
DELETE FROM tokens WHERE id IN (
    SELECT id FROM tokens WHERE expires_at < now() AND kind <> 'DOOR' ORDER BY id FOR UPDATE SKIP LOCKED
);

-- name: delete_expired_sign_in_codes
DELETE FROM sign_in_codes WHERE expires_at < now();

-- name: delete_expired_codes
DELETE FROM door_codes WHERE digest IN (SELECT digest FROM door_codes WHERE expires_at < now() FOR UPDATE SKIP LOCKED);

-- name: delete_tokens_labelled
-- But for this very one; with every token that was created with them, directly or not.
WITH RECURSIVE ended AS (
    SELECT id FROM tokens WHERE user_id = $1 AND kind = 'TOKEN' AND label = $2 AND digest <> $3
    UNION
    SELECT tokens.id FROM tokens JOIN ended ON tokens.creator_id = ended.id
)
DELETE FROM tokens WHERE id IN (SELECT id FROM ended) RETURNING id;

-- name: ensure_token
-- This very token is good for everything its user may, whatever became of it before.
INSERT INTO tokens (id, user_id, label, digest, scopes) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (digest) DO UPDATE
    SET user_id = excluded.user_id, label = excluded.label, scopes = excluded.scopes, expires_at = NULL
    WHERE tokens.kind = 'TOKEN';

-- name: create_door_code
-- By leave of a session that still holds.
INSERT INTO door_codes (digest, session_id, workspace_id, nonce, expires_at)
SELECT $1, session.id, $3, $4, clock_timestamp() + make_interval(secs => $5::double precision)
FROM tokens AS session
WHERE session.id = $2 AND session.kind = 'SESSION' AND session.expires_at > clock_timestamp()
FOR KEY SHARE OF session
RETURNING digest;

-- name: drop_oldest_codes
-- Of one session, beyond so many.
DELETE FROM door_codes WHERE digest IN (
    SELECT digest FROM door_codes WHERE session_id = $1 ORDER BY expires_at DESC, digest OFFSET $2 FOR UPDATE SKIP LOCKED
);

-- name: hold_session_of_code
-- Whoever ends a session holds it and then takes its codes and doors away; in any other order two would wait for each other.
SELECT session.id FROM door_codes JOIN tokens AS session ON session.id = door_codes.session_id
WHERE door_codes.digest = $1
FOR KEY SHARE OF session;

-- name: take_door_code
-- It is good once, whatever comes of it.
DELETE FROM door_codes WHERE digest = $1
RETURNING session_id, workspace_id, nonce, expires_at > clock_timestamp() AS is_fresh;

-- name: create_sign_in_code
INSERT INTO sign_in_codes (digest, user_id, expires_at)
VALUES ($1, $2, clock_timestamp() + make_interval(secs => $3::double precision));

-- name: take_sign_in_code
-- It works once, also when it has expired.
DELETE FROM sign_in_codes WHERE digest = $1 RETURNING user_id, expires_at > clock_timestamp() AS is_fresh;

-- name: drop_sign_in_codes
DELETE FROM sign_in_codes WHERE user_id = $1;

-- name: audit
-- Who did what, from where; names are kept as they were.
INSERT INTO audit (username, user_id, how, token_label, came_from, action, workspace_id, workspace, outcome, detail)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10);
