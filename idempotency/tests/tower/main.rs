//! Tests the tower layer on a real server. Each test has its own schema.

#![allow(clippy::unwrap_used)]

mod api;
mod failures;
mod http;
#[cfg(any(feature = "sqlx-08", feature = "sqlx-09"))]
mod pools;
mod replay;
mod scopes;
mod service;
mod statuses;
#[cfg(feature = "opentelemetry")]
mod trace;

#[allow(dead_code)] // the tests of the modules use the rest of it
#[path = "../modules/database.rs"]
mod database;
