-- What each home takes on its disk, as it was last measured: of which generation, and when the measuring began.

ALTER TABLE workspaces
    ADD COLUMN disk_bytes bigint CHECK (disk_bytes >= 0),
    ADD COLUMN disk_generation integer,
    ADD COLUMN disk_measured_at timestamptz,
    ADD CONSTRAINT disk_use_is_whole CHECK (num_nulls(disk_bytes, disk_generation, disk_measured_at) IN (0, 3));
CREATE INDEX workspaces_with_volumes ON workspaces (disk_measured_at) WHERE volume_present;
GRANT UPDATE (disk_bytes, disk_generation, disk_measured_at) ON workspaces TO torpor_controller;
