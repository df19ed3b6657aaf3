-- The image that a workspace was created with, as the user wrote it. NULL: its template's, or the runtime's default.
ALTER TABLE workspaces
    ADD COLUMN image text CHECK (char_length(image) BETWEEN 1 AND 512);
GRANT INSERT (image) ON workspaces TO torpor_service;
