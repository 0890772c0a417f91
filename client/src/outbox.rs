use std::sync::{Arc, LazyLock};

use crate::check::check;
use crate::driver::OutboxTransaction;
use crate::error::Error;
use crate::event::Event;
use crate::event_id::EventId;
use crate::insert::Insert;
use crate::table::TableName;
use crate::topic::TopicTemplate;

/// An outbox table, and the topics that its events go to.
///
/// Make it once and keep it: it remembers the type of the table's payload column, which saves a round trip
/// a call. Clones share that. An application with several databases makes one for each.
///
/// The default is the table `public.outbox` with topics `events.{aggregate_type}`. Table and template must
/// be those of the relay's configuration.
#[derive(Debug, Clone)]
pub struct Outbox {
    insert: Arc<Insert>,
    template: TopicTemplate,
}

static DEFAULT: LazyLock<Outbox> = LazyLock::new(|| {
    let table = TableName::parse("public.outbox").expect("a lower-case name needs no quotes");
    Outbox { insert: Arc::new(Insert::new(&table)), template: TopicTemplate::default() }
});

impl Default for Outbox {
    fn default() -> Outbox {
        DEFAULT.clone()
    }
}

impl Outbox {
    /// An outbox in another table: `outbox`, `app.outbox` or, for other than lower-case names,
    /// `"My App".outbox`. Without a schema it is in `public`, whatever the search path.
    ///
    /// ```
    /// # #[cfg(feature = "tokio-postgres")] {
    /// let outbox = pg_outbox::Outbox::new("app.outbox")?.topic_template("shop.{aggregate_type}.v1")?;
    /// # }
    /// # Ok::<(), pg_outbox::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::TableName`].
    pub fn new(table: &str) -> Result<Outbox, Error> {
        let table = TableName::parse(table)?;
        Ok(Outbox { insert: Arc::new(Insert::new(&table)), template: TopicTemplate::default() })
    }

    /// The same outbox with other topics.
    ///
    /// # Errors
    ///
    /// [`Error::TopicTemplate`].
    pub fn topic_template(self, template: &str) -> Result<Outbox, Error> {
        Ok(Outbox { template: TopicTemplate::parse(template)?, ..self })
    }

    /// Inserts an event as part of the transaction. Nothing is sent unless the transaction commits.
    ///
    /// One round trip, after one more to learn the type of the payload column at first. A driver that prepares its
    /// statements, as all but tokio-postgres do, needs another one the first time on a connection. Dropping the future
    /// leaves open whether the event is in the transaction: roll back.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidEvent`] leaves the transaction usable. After any other error Postgres accepts
    /// nothing but a rollback.
    pub async fn enqueue(&self, transaction: impl OutboxTransaction, event: Event) -> Result<EventId, Error> {
        let id = event.id();
        self.insert(transaction, &[event]).await?;
        Ok(id)
    }

    /// Inserts many events as part of the transaction, in their order: all of them or, on an error, none.
    ///
    /// One round trip for all of them, as with [`Outbox::enqueue`], and none for no events. They travel in
    /// one message, which Postgres limits to 1 GB: split what comes near it.
    ///
    /// # Errors
    ///
    /// As [`Outbox::enqueue`].
    pub async fn enqueue_many(
        &self,
        transaction: impl OutboxTransaction,
        events: impl IntoIterator<Item = Event>,
    ) -> Result<Vec<EventId>, Error> {
        let events: Vec<Event> = events.into_iter().collect();
        if !events.is_empty() {
            self.insert(transaction, &events).await?;
        }
        Ok(events.iter().map(Event::id).collect())
    }

    /// The table as in SQL.
    #[cfg(feature = "testing")]
    pub(crate) fn table(&self) -> &str {
        self.insert.table()
    }

    async fn insert(&self, transaction: impl OutboxTransaction, events: &[Event]) -> Result<(), Error> {
        check(events, &self.template)?;
        let stored = transaction.insert(&self.insert, events).await?;
        let given = events.len() as u64;
        if stored != given {
            return Err(Error::NotStored { table: self.insert.table().to_owned(), given, stored });
        }
        Ok(())
    }
}

/// Inserts an event into the default [`Outbox`] as part of the transaction: see [`Outbox::enqueue`].
///
/// # Errors
///
/// See [`Outbox::enqueue`].
pub async fn enqueue(transaction: impl OutboxTransaction, event: Event) -> Result<EventId, Error> {
    DEFAULT.enqueue(transaction, event).await
}

/// Inserts many events into the default [`Outbox`] as part of the transaction: see
/// [`Outbox::enqueue_many`].
///
/// # Errors
///
/// See [`Outbox::enqueue_many`].
pub async fn enqueue_many(
    transaction: impl OutboxTransaction,
    events: impl IntoIterator<Item = Event>,
) -> Result<Vec<EventId>, Error> {
    DEFAULT.enqueue_many(transaction, events).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_templates_are_checked_when_the_outbox_is_made() {
        assert!(matches!(Outbox::new("outbox; DROP TABLE orders"), Err(Error::TableName(_))));
        assert!(matches!(Outbox::default().topic_template("a b"), Err(Error::TopicTemplate(_))));
    }
}
