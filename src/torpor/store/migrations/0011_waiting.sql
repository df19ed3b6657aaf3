-- What a workspace waits for: a part that cannot be reached (`torpor.domain.states.Outage`) or disk space. NULL: for nothing.
-- `tell_changed` tells of its beginning and its end once each, however often it is tried meanwhile.
CREATE FUNCTION waits_for(conditions jsonb) RETURNS text IMMUTABLE LANGUAGE sql AS $$
    SELECT CASE WHEN conditions #>> '{policy.healthy,reason}' IN ('ArchiveStoreOut', 'RuntimeOut', 'DiskLow')
                THEN conditions #>> '{policy.healthy,reason}'
                WHEN conditions #>> '{infra.container_ready,reason}' = 'Paused' THEN 'Paused' END
$$;
