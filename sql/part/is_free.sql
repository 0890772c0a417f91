-- Nothing is held, blocked or paused.
NOT EXISTS (SELECT FROM :hold) AND NOT EXISTS (SELECT FROM :blocked_key) AND NOT EXISTS (SELECT FROM :pause)
