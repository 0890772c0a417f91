-- The same as :versions, and whether all excepted transactions are still in progress.
(
    SELECT v.version, v.epoch, :are_open AS are_open FROM :versions OFFSET 0
) v
