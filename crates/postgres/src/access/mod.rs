//! The privileges that the relay and each command need, and the roles as SQL.

pub mod grants;
pub mod module_grants;
pub mod new_roles;
pub mod roles;
