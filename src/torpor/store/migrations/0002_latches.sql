-- When too much disappears at once, it is the view that is wrong: nothing is touched there until it recovers or a person says go.

CREATE TABLE latches (
    provider     text PRIMARY KEY,
    -- What the controller writes.
    since        timestamptz NOT NULL DEFAULT now(),
    expected     integer NOT NULL,
    missing      integer NOT NULL,
    -- What the service writes: an operator looked, and it is really so.
    released_at  timestamptz
);

GRANT SELECT ON latches TO torpor_service, torpor_controller;
GRANT UPDATE (released_at) ON latches TO torpor_service;
GRANT INSERT (provider, expected, missing), UPDATE (expected, missing), DELETE ON latches TO torpor_controller;
