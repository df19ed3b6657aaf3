-- A token that was created with another token is revoked with it. What a session created has no creator here and stays.

ALTER TABLE tokens
    ADD COLUMN creator_id uuid REFERENCES tokens (id) ON DELETE CASCADE,
    ADD CONSTRAINT only_tokens_have_creators CHECK (creator_id IS NULL OR kind = 'TOKEN');
CREATE INDEX tokens_of_creator ON tokens (creator_id) WHERE creator_id IS NOT NULL;

-- A password that the first sign-in with it uses up: the user sets their own afterwards.
ALTER TABLE users
    ADD COLUMN is_one_time boolean NOT NULL DEFAULT false,
    ADD CONSTRAINT only_passwords_are_one_time CHECK (password IS NOT NULL OR NOT is_one_time);

-- The sign-in link that the first start prints: it works once, for minutes; only the SHA-256 of its code is stored.
CREATE TABLE sign_in_codes (
    digest      bytea PRIMARY KEY CHECK (octet_length(digest) = 32),
    user_id     uuid NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    expires_at  timestamptz NOT NULL
);
CREATE INDEX sign_in_codes_of_user ON sign_in_codes (user_id);
GRANT SELECT, INSERT, DELETE ON sign_in_codes TO torpor_service;
