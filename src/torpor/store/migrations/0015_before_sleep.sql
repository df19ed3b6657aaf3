-- A command that runs before an automatic stop. NULL: the template's; empty: none. Every event carries it, so it is short.
ALTER TABLE workspaces
    ADD COLUMN before_sleep text[],
    ADD CONSTRAINT before_sleep_is_short CHECK (octet_length(array_to_string(before_sleep, '')) <= 4096);
GRANT INSERT (before_sleep), UPDATE (before_sleep) ON workspaces TO torpor_service;

-- While it runs, STOPPING has a stage of its own: nothing has been stopped yet.
ALTER TABLE workspaces
    DROP CONSTRAINT workspaces_stage_check,
    ADD CONSTRAINT workspaces_stage_check CHECK (stage IN ('REST', 'BEFORE_SLEEP', 'CALL', 'SEE', 'BACKOFF')),
    ADD CONSTRAINT before_sleep_is_of_a_stop CHECK (stage <> 'BEFORE_SLEEP' OR operation = 'STOPPING');
