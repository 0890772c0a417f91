-- Replaces the recorded clusters with those that are known.
--
-- $1: the system identifier of the PostgreSQL cluster
-- $2: the ID of the Kafka cluster
UPDATE :setting
SET system_identifier = coalesce($1::bigint, system_identifier), kafka_cluster_id = coalesce($2::text, kafka_cluster_id),
    identified_at = now(), identified_by = session_user
RETURNING true;
