-- The key is neither blocked nor paused. The server evaluates the NOT EXISTS once.
(NOT EXISTS (
        SELECT 1 FROM :blocked_key UNION ALL SELECT 1 FROM :pause WHERE aggregate_id IS NOT NULL)
    OR :key_not_blocked
    AND :key_not_paused)
