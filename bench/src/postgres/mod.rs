//! All SQL: the scratch schema, the load and its writers, and facts about the server.

pub mod about;
pub mod counters;
pub mod load;
pub mod schema;
pub mod statements;
pub mod writer;
