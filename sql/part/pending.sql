-- The unsent rows of a lane that may be published: above the mark, and not held, blocked or paused.
:above_mark
    AND :not_held
    AND :not_blocked
