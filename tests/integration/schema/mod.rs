//! The tables, their checks and migrations, and the roles.

mod adopting;
mod check;
pub(crate) mod migrate;
mod modules;
mod planted;
mod queries;
mod roles;
mod search_path;
mod upgrading;
