-- Who may come in, how they showed who they are, what they share, and what they did.

ALTER TABLE users
    ADD COLUMN is_active boolean NOT NULL DEFAULT true,
    ADD COLUMN max_running integer CHECK (max_running >= 0),  -- NULL: as the settings say for everybody
    ADD COLUMN issuer text,                                   -- of an OIDC provider, with the name it has for this person
    ADD COLUMN subject text,
    ADD CONSTRAINT subject_has_issuer CHECK ((issuer IS NULL) = (subject IS NULL)),
    ADD CONSTRAINT one_person_one_user UNIQUE (issuer, subject);

-- One row for everything by which somebody is recognised; of each only the SHA-256.
-- SESSION: a browser on the platform. TOKEN: a program. DOOR: a browser on one workspace's own host, by leave of a session.
ALTER TABLE tokens
    ADD COLUMN kind text NOT NULL DEFAULT 'TOKEN' CHECK (kind IN ('SESSION', 'TOKEN', 'DOOR')),
    ADD COLUMN scopes text[] NOT NULL DEFAULT '{}',
    ADD COLUMN parent_id uuid REFERENCES tokens (id) ON DELETE CASCADE,
    ADD COLUMN workspace_id uuid REFERENCES workspaces (id) ON DELETE CASCADE,
    ADD COLUMN made_from text NOT NULL DEFAULT '',            -- the address, and what the browser says it is
    ADD COLUMN user_agent text NOT NULL DEFAULT '',
    ADD COLUMN last_used_at timestamptz;
UPDATE tokens SET kind = 'SESSION' WHERE label = 'session';
-- What was made before there were scopes may do what its user may.
UPDATE tokens SET scopes = '{read,use,manage,account,admin}' WHERE kind = 'TOKEN';
ALTER TABLE tokens
    ADD CONSTRAINT door_is_of_a_session CHECK ((kind = 'DOOR') = (parent_id IS NOT NULL)),
    ADD CONSTRAINT door_is_of_a_workspace CHECK ((kind = 'DOOR') = (workspace_id IS NOT NULL)),
    ADD CONSTRAINT only_tokens_have_scopes CHECK (kind = 'TOKEN' OR scopes = '{}'),
    ADD CONSTRAINT sessions_end CHECK (kind = 'TOKEN' OR expires_at IS NOT NULL);
CREATE INDEX tokens_of_user ON tokens (user_id, kind, created_at);
CREATE INDEX tokens_of_parent ON tokens (parent_id) WHERE parent_id IS NOT NULL;
CREATE INDEX tokens_of_workspace ON tokens (workspace_id) WHERE workspace_id IS NOT NULL;
CREATE INDEX tokens_that_end ON tokens (expires_at) WHERE expires_at IS NOT NULL;

-- A redirect carries it from the platform to a workspace's host, where it is good once, for seconds, and only together with
-- the nonce that the same browser was given there.
CREATE TABLE door_codes (
    digest        bytea PRIMARY KEY CHECK (octet_length(digest) = 32),
    session_id    uuid NOT NULL REFERENCES tokens (id) ON DELETE CASCADE,
    workspace_id  uuid NOT NULL REFERENCES workspaces (id) ON DELETE CASCADE,
    nonce         bytea NOT NULL CHECK (octet_length(nonce) = 32),
    expires_at    timestamptz NOT NULL
);
CREATE INDEX door_codes_of_session ON door_codes (session_id);

-- With whom a workspace is shared: user name to `use` or `manage`. In the row itself, so that every event and every route tells.
ALTER TABLE workspaces
    ADD COLUMN shares jsonb NOT NULL DEFAULT '{}',
    ADD CONSTRAINT shares_are_an_object CHECK (jsonb_typeof(shares) = 'object');
CREATE INDEX workspaces_shared_with ON workspaces USING gin (shares) WHERE shares <> '{}';

-- What those it is shared with have missed is found without reading what happened to all the others.
CREATE INDEX outbox_shared ON outbox (event_id) WHERE "row" -> 'shares' <> '{}' OR "row" ? 'unshared';

CREATE OR REPLACE FUNCTION tell_changed() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
    INSERT INTO outbox (workspace_id, owner_id, kind, row)
    SELECT after.id, after.owner_id,
           CASE WHEN after.error_info IS NOT NULL AND after.error_info IS DISTINCT FROM before.error_info
                THEN 'error' ELSE 'state_changed' END,
           (to_jsonb(after) - 'command')
               -- Whoever it is no longer shared with hears nothing of it any more, so this tells that they must look anew.
               || CASE WHEN before.shares <> after.shares THEN jsonb_build_object('unshared', to_jsonb(ARRAY(
                      SELECT jsonb_object_keys(before.shares) EXCEPT SELECT jsonb_object_keys(after.shares)
                  ))) ELSE '{}' END
    FROM after JOIN before USING (id)
    WHERE (after.phase, after.operation, after.container_present, after.volume_present, after.error_info,
           after.desired_state, after.wish_version, after.name, after.deleted_at, after.purge, after.shares,
           progress_step(after.progress_done, after.progress_total))
          IS DISTINCT FROM
          (before.phase, before.operation, before.container_present, before.volume_present, before.error_info,
           before.desired_state, before.wish_version, before.name, before.deleted_at, before.purge, before.shares,
           progress_step(before.progress_done, before.progress_total));
    IF FOUND THEN
        PERFORM pg_notify('workspace_changes', '');
    END IF;
    RETURN NULL;
END $$;

-- Who wished what, when, from where. Names are kept as they were: it outlives users and workspaces.
CREATE TABLE audit (
    id            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at            timestamptz NOT NULL DEFAULT clock_timestamp(),
    username      text NOT NULL,                              -- for a sign-in that failed, the name that was tried
    user_id       uuid,
    how           text NOT NULL CHECK (how IN ('SESSION', 'TOKEN', 'DOOR', 'NOBODY', 'SYSTEM')),
    token_label   text NOT NULL DEFAULT '',
    came_from     text NOT NULL DEFAULT '',                   -- an address
    action        text NOT NULL,                              -- such as workspace.wish or session.begin
    workspace_id  uuid,
    workspace     text NOT NULL DEFAULT '',
    outcome       text NOT NULL DEFAULT 'ok',                 -- or the code of the refusal
    detail        jsonb NOT NULL DEFAULT '{}'
);
CREATE INDEX audit_of_user ON audit (user_id, id);
CREATE INDEX audit_of_workspace ON audit (workspace_id, id);
CREATE INDEX audit_of_username ON audit (username, id);
CREATE INDEX audit_of_workspace_name ON audit (workspace, id);

-- A creation that is asked for again with the same key is the same creation.
CREATE TABLE creations (
    user_id       uuid NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    key           text NOT NULL CHECK (char_length(key) BETWEEN 1 AND 200),
    request       bytea NOT NULL CHECK (octet_length(request) = 32),
    workspace_id  uuid NOT NULL REFERENCES workspaces (id) ON DELETE CASCADE,
    at            timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (user_id, key)
);
CREATE INDEX creations_in_order ON creations (at);

GRANT SELECT, INSERT, DELETE ON door_codes, creations TO torpor_service;
GRANT UPDATE (expires_at) ON door_codes TO torpor_service;  -- nobody does: to lock a row takes the right to
GRANT SELECT, INSERT ON audit TO torpor_service;
GRANT UPDATE (shares) ON workspaces TO torpor_service;
