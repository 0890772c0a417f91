//! What the tests on a running relay share: a separate world for each test, the real binary as a process, writers that
//! take turns, and a consumer and a checker that are independent of the relay.

#![allow(dead_code)] // each test binary uses a part of it

#[cfg(feature = "aws")]
pub mod aws;
pub mod certificates;
pub mod checker;
pub mod command;
pub mod consumer;
pub mod database;
pub mod kafka_proxy;
pub mod kafka_server;
pub mod kafka_wire;
pub mod notify_socket;
pub mod outbox;
pub mod pgbouncer;
pub mod postgres_proxy;
pub mod postgres_server;
pub mod relay;
pub mod rendered;
pub mod roles;
pub mod rows;
pub mod tls_proxy;
pub mod token_endpoint;
pub mod topics;
pub mod wait;
pub mod writers;
