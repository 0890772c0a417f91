//! Inserts events into a Postgres outbox table.
