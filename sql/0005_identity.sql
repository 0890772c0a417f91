-- Which PostgreSQL cluster and which Kafka cluster the outbox belongs to. The first relay records both, and a relay that finds
-- others stops until an operator confirms them. A copy of the database in another cluster contains the identifiers of the
-- original, so a relay of the copy does not publish the events of the original again.
ALTER TABLE {setting}
    ADD COLUMN system_identifier bigint,                                      -- of pg_control_system(); NULL if not recorded yet
    ADD COLUMN kafka_cluster_id  text,                                        -- NULL if not recorded yet
    ADD COLUMN identified_at     timestamptz,                                 -- when they were recorded or confirmed
    ADD COLUMN identified_by     text;                                        -- by which login role
