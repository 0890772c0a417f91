//! Logging in to real servers with TLS and authentication: what works, how each mistake is reported, and what a relay
//! does while certificates and passwords are rotated.

#![allow(clippy::unwrap_used)] // clippy.toml allows it in test functions; this covers what they call

mod admin;
mod kafka;
mod kafka_cases;
mod kafka_rotation;
#[cfg(feature = "aws")]
mod msk;
mod oauth;
mod postgres;
mod postgres_cases;
mod postgres_impostor;
#[path = "../support/mod.rs"]
mod support;
