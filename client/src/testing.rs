//! For the tests of applications: reads enqueued and committed events, without a relay or Kafka.
//!
//! A test passes its open transaction, and looks only at the events of that transaction. Committed events of other tests do
//! not affect it.
//!
//! ```no_run
//! # #[cfg(all(feature = "tokio-postgres", feature = "derive"))] mod example {
//! # async fn pay_order(_: &tokio_postgres::Transaction<'_>, order_id: i64) {}
//! use pg_outbox::testing::{self, Enqueued, Filter};
//!
//! #[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize, pg_outbox::OutboxEvent)]
//! #[outbox(aggregate = "order", key = "order_id")]
//! struct OrderPaid {
//!     order_id: i64,
//! }
//!
//! async fn a_paid_order_announces_itself(client: &mut tokio_postgres::Client) -> Result<(), testing::Error> {
//!     let tx = client.transaction().await.unwrap();
//!     pay_order(&tx, 42).await;
//!     assert_eq!(testing::enqueued::<OrderPaid>(&tx).await?, [OrderPaid { order_id: 42 }]);
//!     testing::refute_enqueued(&tx, Filter::event("order", "OrderCancelled").key(42)).await?;
//!     let event = testing::assert_enqueued(&tx, Filter::of::<OrderPaid>()).await?;
//!     assert_eq!((event.event::<OrderPaid>()?.order_id, &event.json()?["order_id"]), (42, &42.into()));
//!     let all: Vec<Enqueued> = testing::find(&tx, Filter::new()).await?;
//!     assert_eq!(all, [event]);
//!     tx.commit().await.unwrap();
//!     for event in testing::drain(&*client, Filter::new().aggregate_type("order").keys([42, 43])).await? {
//!         println!("the consumer receives {event}");
//!     }
//!     Ok(())
//! }
//! # }
//! ```
//!
//! If the application commits by itself, use [`Filter::with_committed`] with a key that no other test uses. [`drain`] returns
//! committed events in the order in which a relay would publish them, so that a test can pass them to the application's
//! consumer. Do not use it together with a relay, because drained events are never published.

mod enqueued;
mod filter;

pub use enqueued::{Enqueued, Error};
pub use filter::Filter;

use serde::de::DeserializeOwned;

use crate::driver::{OutboxClient, OutboxTransaction};
use crate::statement::Answer;
use crate::typed::OutboxEvent;

/// How many events a failed assertion lists.
const LISTED_MAX: usize = 20;

/// The events of this type that the transaction has enqueued into the default outbox, in the order of their IDs.
///
/// To look at another outbox, or only at some keys, use [`find`]. See the [module](self) for an example.
///
/// # Errors
///
/// [`Error`], also if the JSON of an event does not have this type.
pub async fn enqueued<E: OutboxEvent + DeserializeOwned>(
    transaction: impl OutboxTransaction,
) -> Result<Vec<E>, Error> {
    let found = find(transaction, Filter::of::<E>()).await?;
    found.iter().map(Enqueued::event).collect()
}

/// The events that the filter selects, in the order of their IDs.
pub async fn find(transaction: impl OutboxTransaction, filter: Filter) -> Result<Vec<Enqueued>, Error> {
    Ok(look(transaction, &filter).await?.selected)
}

/// The only event that the filter selects.
///
/// # Panics
///
/// If there is none, or more than one. The message lists the events of the transaction.
pub async fn assert_enqueued(transaction: impl OutboxTransaction, filter: Filter) -> Result<Enqueued, Error> {
    let seen = look(transaction, &filter).await?;
    match <[Enqueued; 1]>::try_from(seen.selected) {
        Ok([event]) => Ok(event),
        Err(found) => {
            panic!("expected one {filter}, but found {}; enqueued: {}", found.len(), listed(&seen.all))
        }
    }
}

/// Asserts that the filter selects no event.
///
/// # Panics
///
/// If there is one. The message lists the events of the transaction.
pub async fn refute_enqueued(transaction: impl OutboxTransaction, filter: Filter) -> Result<(), Error> {
    let seen = look(transaction, &filter).await?;
    let found = seen.selected.len();
    assert!(found == 0, "expected no {filter}, but found {found}; enqueued: {}", listed(&seen.all));
    Ok(())
}

/// Removes the unsent committed events that the filter selects from the outbox, and returns them in the order of their IDs.
pub async fn drain(mut client: impl OutboxClient, filter: Filter) -> Result<Vec<Enqueued>, Error> {
    let keys = filter.key_texts();
    let (statement, arguments) = filter.drain(keys.as_deref());
    Ok(read(client.call(&statement, &arguments).await?)?.selected)
}

/// The events of an outbox that a test may look at.
struct Seen {
    selected: Vec<Enqueued>,
    all: Vec<String>,
}

async fn look(transaction: impl OutboxTransaction, filter: &Filter) -> Result<Seen, Error> {
    let keys = filter.key_texts();
    let (statement, arguments) = filter.select(keys.as_deref());
    read(transaction.call(&statement, &arguments).await?)
}

fn read(rows: Vec<Answer>) -> Result<Seen, Error> {
    let mut seen = Seen { selected: Vec::new(), all: Vec::new() };
    for mut row in rows {
        let is_selected = row.flag();
        let (description, event) = Enqueued::read(row);
        seen.all.push(description);
        if is_selected {
            seen.selected.push(event?);
        }
    }
    Ok(seen)
}

fn listed(events: &[String]) -> String {
    match events.len().checked_sub(LISTED_MAX) {
        None | Some(0) => format!("{events:?}"),
        Some(more) => format!("{:?} and {more} more", &events[..LISTED_MAX]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_assertion_lists_a_limited_number_of_events() {
        let events: Vec<String> = (0..22).map(|n| n.to_string()).collect();
        assert_eq!(listed(&events[..2]), r#"["0", "1"]"#);
        assert!(listed(&events[..20]).ends_with(r#""19"]"#));
        assert!(listed(&events).ends_with(r#""19"] and 2 more"#));
    }
}
