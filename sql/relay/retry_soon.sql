-- Sets the next probe of topics that were not probed.
--
-- $1: the topics
UPDATE :hold SET probe_at = now() + interval '1 second', probes = greatest(probes - 1, 0)
WHERE topic = ANY($1::text[]);
