-- The id of the key file that all processes of this installation have. NULL: no process needed it yet. The id does not reveal
-- the key.
ALTER TABLE housekeeping ADD COLUMN secret_key_id text;
GRANT UPDATE (secret_key_id) ON housekeeping TO torpor_service;
