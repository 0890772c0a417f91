//! `[outbox.columns]` and `migrate --adopt`: an existing table with other names becomes an outbox.

mod adoption;
mod commands;
mod interruptions;
mod plans;
mod publishing;
mod refusals;
pub(crate) mod world;
