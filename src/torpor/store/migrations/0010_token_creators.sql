-- A token that was created with another token is revoked with it. What a session created has no creator here and stays.

ALTER TABLE tokens
    ADD COLUMN creator_id uuid REFERENCES tokens (id) ON DELETE CASCADE,
    ADD CONSTRAINT only_tokens_have_creators CHECK (creator_id IS NULL OR kind = 'TOKEN');
CREATE INDEX tokens_of_creator ON tokens (creator_id) WHERE creator_id IS NOT NULL;
