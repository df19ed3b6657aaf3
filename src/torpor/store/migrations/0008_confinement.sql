-- What each controller cannot confine: an installation whose workspaces are not confined is for one user.

ALTER TABLE controllers
    -- Each protection between users that its machine lacks: [{"what": ..., "why": ..., "remedy": ...}, ...].
    ADD COLUMN missing jsonb NOT NULL DEFAULT '[]' CHECK (jsonb_typeof(missing) = 'array'),
    -- Its operator accepts several users without confinement (setting `unconfined`).
    ADD COLUMN is_accepted boolean NOT NULL DEFAULT false,
    -- For users who bring their own program; empty when its port is closed to other programs.
    ADD COLUMN port_warning text NOT NULL DEFAULT '';

-- A controller that joins counts the users that can sign in.
GRANT SELECT (is_active) ON users TO torpor_controller;
