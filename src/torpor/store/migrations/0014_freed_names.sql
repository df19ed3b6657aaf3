-- A name that a deleted or renamed workspace had is reserved for its owner for a while: its host name is an origin in the
-- browsers of those who used it. For how long is a setting, so the time at which it was freed is kept here.

CREATE TABLE freed_names (
    name      text PRIMARY KEY,
    owner_id  uuid NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    freed_at  timestamptz NOT NULL
);
CREATE INDEX freed_names_of_owner ON freed_names (owner_id);
GRANT SELECT, INSERT, UPDATE ON freed_names TO torpor_service;

CREATE FUNCTION note_freed_name() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO freed_names (name, owner_id, freed_at) VALUES (OLD.name, OLD.owner_id, clock_timestamp())
    ON CONFLICT (name) DO UPDATE SET owner_id = excluded.owner_id, freed_at = excluded.freed_at;
    RETURN NULL;
END $$;

CREATE TRIGGER note_freed_name AFTER UPDATE OF name, deleted_at ON workspaces
    FOR EACH ROW
    WHEN (OLD.deleted_at IS NULL AND (NEW.deleted_at IS NOT NULL OR NEW.name <> OLD.name))
    EXECUTE FUNCTION note_freed_name();

INSERT INTO freed_names (name, owner_id, freed_at)
SELECT DISTINCT ON (name) name, owner_id, deleted_at FROM workspaces WHERE deleted_at IS NOT NULL ORDER BY name, deleted_at DESC;
