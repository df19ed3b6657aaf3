-- The size that a workspace was created with. NULL: its template's, or the installation's default.
ALTER TABLE workspaces
    ADD COLUMN cpu double precision CHECK (cpu > 0 AND cpu <= 4096),
    ADD COLUMN memory_mb integer CHECK (memory_mb >= 16),
    ADD COLUMN disk_mb integer CHECK (disk_mb >= 1);
GRANT INSERT (cpu, memory_mb, disk_mb) ON workspaces TO torpor_service;

-- Which sizes a controller's machine does not enforce, for users who ask for one; empty: it does.
ALTER TABLE controllers
    ADD COLUMN cpu_warning text NOT NULL DEFAULT '',
    ADD COLUMN disk_warning text NOT NULL DEFAULT '';
