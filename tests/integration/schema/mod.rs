//! The tables, their checks and migrations, and the roles.

pub(crate) mod adopting;
mod check;
pub(crate) mod migrate;
mod modules;
mod planted;
mod privileges;
mod queries;
mod roles;
mod search_path;
mod services;
mod upgrading;
