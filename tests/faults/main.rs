//! Faults on real servers: servers that stop and restart, networks that fail, and relays that crash at a chosen point.
//! Each result is judged by a consumer and a checker that are independent of the relay.

#![allow(clippy::unwrap_used)] // clippy.toml allows it in test functions; this covers what they call

#[cfg(feature = "fail-points")]
mod fail_points;
mod kafka_partitions;
mod kafka_producers;
mod kafka_refusals;
mod kafka_replicas;
mod kafka_requests;
mod kafka_restarts;
mod kafka_rights;
mod kafka_silence;
mod kafka_topics;
mod pgbouncer;
mod postgres_application;
mod postgres_commit;
mod postgres_disk_full;
mod postgres_failover;
mod postgres_frozen;
mod postgres_refuses;
mod postgres_restart;
#[path = "../support/mod.rs"]
mod support;
mod world;
