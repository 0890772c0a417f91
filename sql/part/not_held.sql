-- The topic is neither held nor paused: one index probe for each row, however many topics are held, and none if there are no
-- holds and no pauses of topics. The server evaluates the NOT EXISTS without the row once. OFFSET 0 keeps it from reading all
-- holds for a read of one row.
(NOT EXISTS (SELECT FROM :hold)
    OR NOT EXISTS (SELECT FROM :hold b WHERE b.topic = :topic OFFSET 0))
    AND (NOT EXISTS (SELECT FROM :pause WHERE topic IS NOT NULL AND aggregate_id IS NULL)
    OR NOT EXISTS (SELECT FROM :pause b WHERE b.aggregate_id IS NULL AND b.topic = :topic OFFSET 0))
