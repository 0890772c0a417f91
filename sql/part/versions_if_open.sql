-- The same as :versions, but with a version that no set of holds has if an excepted transaction has ended.
(
    SELECT CASE WHEN :are_open THEN v.version ELSE -1 END AS version, v.epoch FROM :versions OFFSET 0
) v
