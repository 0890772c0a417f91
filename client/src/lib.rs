//! Inserts events into a Postgres outbox table.

pub mod topic;

mod error;
mod event;
mod event_id;

#[cfg(feature = "tokio-postgres")]
mod columns;
#[cfg(feature = "tokio-postgres")]
mod driver;
#[cfg(feature = "tokio-postgres")]
mod insert;
#[cfg(feature = "tokio-postgres")]
mod outbox;
#[cfg(feature = "tokio-postgres")]
mod table;

pub use error::{Error, InvalidEvent};
pub use event::{Event, NoPayload, Payload};
pub use event_id::{EventId, ParseEventIdError};
pub use uuid::Uuid;

#[cfg(feature = "tokio-postgres")]
pub use driver::OutboxTransaction;
#[cfg(feature = "tokio-postgres")]
pub use error::PostgresError;
#[cfg(feature = "tokio-postgres")]
pub use outbox::{Outbox, enqueue, enqueue_many};
#[cfg(feature = "tokio-postgres")]
pub use table::TableNameError;
