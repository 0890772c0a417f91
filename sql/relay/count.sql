-- Counts held topics, blocked keys and pauses.
--
-- There may be many blocked keys, so they are counted only if the set has changed since the last count, or the server has
-- restarted.
--
-- $1: the version at the last count
-- $2: the start of the server at the last count
SELECT (SELECT count(*) FROM :hold),
       CASE WHEN v.version = $1::bigint AND pg_postmaster_start_time() = $2::timestamptz THEN NULL
            ELSE (SELECT count(*) FROM :blocked_key) END,
       v.version, p.everything, p.topics, p.keys, pg_postmaster_start_time()
FROM (SELECT max(version) AS version FROM :hold_version WHERE singleton) AS v,
     (SELECT count(*) - count(topic) - count(aggregate_id) AS everything, count(topic) AS topics,
             count(aggregate_id) AS keys
      FROM :pause) AS p;
