-- The packs of a copy that never came to its end are left over. They have the names of the originals, so another workspace wrote
-- the operations in their names.

-- Whether this operation belongs to a workspace that this one is a copy of, directly or through other copies.
CREATE FUNCTION is_of_source(workspace workspaces, made_by uuid) RETURNS boolean STABLE LANGUAGE sql AS $$
    WITH RECURSIVE sources (id) AS (
        SELECT (workspace.fork_source ->> 'workspace_id')::uuid
        UNION
        SELECT (forks.fork_source ->> 'workspace_id')::uuid FROM workspaces AS forks JOIN sources ON sources.id = forks.id
    )
    SELECT EXISTS (SELECT FROM operations JOIN sources ON sources.id = operations.workspace_id WHERE op_id = made_by)
$$;

-- Whether the copy may still be made, now or after an undelete. Its packs have fixed names, so none of them may be removed
-- before: a removal could come after the next try has written the pack again.
CREATE FUNCTION may_be_copied(workspace workspaces) RETURNS boolean STABLE LANGUAGE sql AS $$
    SELECT workspace.fork_source IS NOT NULL AND (
        workspace.operation <> 'NONE'
        OR (workspace.archive_key IS NULL AND workspace.generation = 0 AND NOT (workspace.phase = 'DELETED' AND (
            workspace.purge OR NOT EXISTS (SELECT FROM archives WHERE key = workspace.fork_source ->> 'key')
        )))
    )
$$;

-- Whether a pack that the table does not have, written by this operation, belongs to no archive: the operation has ended,
-- another one came after it, and if the workspace is restored from the archive of that operation, the packs of that archive
-- are known. Or it is a copy, and no copy is made any more.
CREATE OR REPLACE FUNCTION is_left_over_pack(workspace workspaces, made_by uuid) RETURNS boolean STABLE LANGUAGE sql AS $$
    SELECT CASE WHEN is_of_source(workspace, made_by) THEN NOT may_be_copied(workspace) ELSE
           workspace.op_id IS DISTINCT FROM made_by
       AND (workspace.archive_key IS DISTINCT FROM workspace.id::text || '/' || made_by::text OR EXISTS (
               SELECT FROM archives WHERE key = workspace.archive_key AND proven_at IS NOT NULL
           ))
       AND (SELECT coalesce(bool_and(ended_at IS NOT NULL AND kind IN ('ARCHIVING', 'COPYING', 'CREATE_EMPTY_ARCHIVE')), false)
            FROM operations WHERE workspace_id = workspace.id AND op_id = made_by)
    END
$$;
