//! Support code that these tests share with those of the relay.

#![allow(dead_code)] // these tests use a part of it

#[path = "../../tests/support/database.rs"]
pub mod database;
#[path = "../../tests/support/roles.rs"]
pub mod roles;
#[path = "../../tests/support/wait.rs"]
pub mod wait;
