//! Rights: those that the relay and each command need, and the roles that have them.

pub mod grants;
pub(crate) mod module_grants;
pub mod roles;
