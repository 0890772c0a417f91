//! What these tests share with those of the relay.

#![allow(dead_code)] // these tests do not use all of it

#[path = "../../tests/support/database.rs"]
pub mod database;
#[path = "../../tests/support/roles.rs"]
pub mod roles;
