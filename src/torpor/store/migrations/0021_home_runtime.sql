-- The runtime that has the homes of this database, and the move of all homes to another runtime.
CREATE TABLE home_runtime (
    is_only_row      boolean PRIMARY KEY DEFAULT true CHECK (is_only_row),
    -- The setting `runtime`, a colon, and the identity of its engine or data directory. NULL: no controller has joined yet.
    world            text,
    -- The setting `runtime` that the homes move to. NULL: no move is in progress.
    switch_to        text,
    switch_began_at  timestamptz,
    CHECK ((switch_to IS NULL) = (switch_began_at IS NULL))
);
INSERT INTO home_runtime DEFAULT VALUES;
GRANT SELECT, UPDATE (world) ON home_runtime TO torpor_service, torpor_controller;
GRANT UPDATE (switch_to, switch_began_at) ON home_runtime TO torpor_service;

ALTER TABLE workspaces
    -- The state that is requested again after the move. NULL: no move is in progress, or it stays archived.
    ADD COLUMN resume_state text CHECK (resume_state IN ('RUNNING', 'STANDBY')),
    DROP CONSTRAINT workspaces_wish_origin_check,
    ADD CONSTRAINT workspaces_wish_origin_check CHECK (wish_origin IN ('PERSON', 'IDLE', 'WAKE', 'SWITCH'));
GRANT UPDATE (resume_state) ON workspaces TO torpor_service;
