//! Logging in, on real servers with TLS and authentication on: what works, what each mistake looks like, and what a relay
//! does while certificates and passwords are rotated under it.

#![allow(clippy::unwrap_used)] // clippy.toml allows it in test functions, this also in what they call

mod admin;
mod kafka;
mod kafka_cases;
mod kafka_rotation;
mod oauth;
mod postgres;
mod postgres_cases;
#[path = "../support/mod.rs"]
mod support;
