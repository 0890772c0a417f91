-- Records the clusters that are not recorded.
--
-- Of two relays that start at the same time, the second one waits for the first, and finds its values. Returns no row if nothing
-- was left to record.
--
-- $1: the system identifier of the PostgreSQL cluster
-- $2: the ID of the Kafka cluster
UPDATE :setting
SET system_identifier = coalesce(system_identifier, $1::bigint), kafka_cluster_id = coalesce(kafka_cluster_id, $2::text),
    identified_at = now(), identified_by = session_user
WHERE (system_identifier IS NULL AND $1::bigint IS NOT NULL) OR (kafka_cluster_id IS NULL AND $2::text IS NOT NULL)
RETURNING true;
