//! Faults on real servers: servers that go and come back, networks that fail, relays that die at a chosen point. Each
//! world is judged by a consumer and a checker that know nothing of the relay.

#![allow(clippy::unwrap_used)] // clippy.toml allows it in test functions, this also in what they call

mod kafka_producers;
mod kafka_refusals;
mod kafka_replicas;
mod kafka_requests;
mod kafka_restarts;
mod kafka_rights;
mod kafka_silence;
mod kafka_topics;
#[path = "../support/mod.rs"]
mod support;
