-- A token that was created with another token is revoked with it. What a session created has no creator here and stays.

ALTER TABLE tokens
    ADD COLUMN creator_id uuid REFERENCES tokens (id) ON DELETE CASCADE,
    ADD CONSTRAINT only_tokens_have_creators CHECK (creator_id IS NULL OR kind = 'TOKEN');
CREATE INDEX tokens_of_creator ON tokens (creator_id) WHERE creator_id IS NOT NULL;

-- A password that the first sign-in with it uses up: the user sets their own afterwards.
ALTER TABLE users
    ADD COLUMN is_one_time boolean NOT NULL DEFAULT false,
    ADD CONSTRAINT only_passwords_are_one_time CHECK (password IS NOT NULL OR NOT is_one_time);
