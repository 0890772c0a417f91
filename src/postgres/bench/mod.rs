//! The SQL of `outbox-relay bench`: a scratch schema, the load that is put into its outbox, and who puts it there.

pub mod about;
pub mod load;
pub mod schema;
pub mod writer;
