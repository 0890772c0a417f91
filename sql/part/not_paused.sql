-- Neither the topic nor everything is paused.
NOT EXISTS (
    SELECT FROM :pause b WHERE b.aggregate_id IS NULL AND (b.topic IS NULL OR b.topic = :topic))
