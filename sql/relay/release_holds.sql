-- Releases held topics.
--
-- $1: the topics
DELETE FROM :hold WHERE topic = ANY($1::text[]);
