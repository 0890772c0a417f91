//! The privileges that the relay and each command need, and the roles as SQL.

pub mod grants;
pub(crate) mod module_grants;
pub(crate) mod new_roles;
pub mod roles;
