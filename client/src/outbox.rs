use std::sync::{Arc, LazyLock};

use crate::agreement::{self, CheckError, RelayTopics};
use crate::check::check;
use crate::driver::{OutboxClient, OutboxTransaction};
use crate::error::Error;
use crate::event::Event;
use crate::event_id::EventId;
use crate::insert::Insert;
use crate::table::TableName;
use crate::topic::TopicTemplate;
use crate::typed::{Convert, IntoEvent};

/// An outbox table, and the topics of its events.
///
/// Create it once and keep it: it remembers the type of the payload column, which saves a round trip per call. Clones share
/// this. Create one for each database.
///
/// The default is the table `public.outbox` with the topics `events.{aggregate_type}`. The table and the template must match
/// the relay's configuration, which [`Outbox::check`] checks.
///
/// ```no_run
/// # #[cfg(feature = "tokio-postgres")] mod example {
/// # async fn example(client: &mut tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
/// use pg_outbox::{Event, Outbox, RelayTopics};
///
/// // Once, when the application starts:
/// let outbox = Outbox::new("app.outbox")?.topic_template("shop.{aggregate_type}.v1")?;
/// match outbox.check(&*client).await {
///     Ok(RelayTopics::Recorded { template }) => println!("the relay publishes to {template}"),
///     Ok(unknown) => println!("the topics were not compared: {unknown}"),
///     Err(error) => eprintln!("alert: {error}"), // start anyway
/// }
///
/// let tx = client.transaction().await?;
/// let id = outbox.enqueue(&tx, Event::new("order", 42, "OrderPlaced").bytes("{}")).await?;
/// println!("consumers receive the event with the ID {id}");
/// let packed = (1..=3).map(|item| Event::new("order", 42, "ItemPacked").bytes(item.to_string()));
/// assert_eq!(outbox.enqueue_many(&tx, packed).await?.len(), 3);
/// tx.commit().await?;
/// # Ok(()) }
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Outbox {
    pub(crate) insert: Arc<Insert>,
    template: TopicTemplate,
    sets_template: bool,
}

static DEFAULT: LazyLock<Outbox> =
    LazyLock::new(|| Outbox::new("public.outbox").expect("a lower-case name needs no quotes"));

impl Default for Outbox {
    fn default() -> Outbox {
        DEFAULT.clone()
    }
}

impl Outbox {
    /// An outbox in another table: `outbox`, `app.outbox`, or `"My App".outbox` if a part of the name is not lower-case. The
    /// default schema is `public`, regardless of the search path.
    ///
    /// # Errors
    ///
    /// [`Error::TableName`].
    pub fn new(table: &str) -> Result<Outbox, Error> {
        let insert = Arc::new(Insert::new(TableName::parse(table)?));
        Ok(Outbox { insert, template: TopicTemplate::default(), sets_template: false })
    }

    /// The same outbox with other topics: a fixed name, or a name with `{aggregate_type}`, `{event_type}` or both.
    ///
    /// # Errors
    ///
    /// [`Error::TopicTemplate`].
    pub fn topic_template(self, template: &str) -> Result<Outbox, Error> {
        Ok(Outbox { template: TopicTemplate::parse(template)?, sets_template: true, ..self })
    }

    /// Compares this outbox with the database, usually when the application starts: the table, the columns that this crate
    /// sets, and the topic template that the relay has recorded. It inserts nothing.
    ///
    /// The template is compared only if [`Outbox::topic_template`] has set one. If no relay has recorded its template, this is
    /// not an error, but part of the result.
    ///
    /// Treat an error as an alert, at least if only the templates differ. The relay alone determines the topics. While the
    /// template is being changed, an application that refuses to start would cause an outage.
    ///
    /// It needs one or two round trips, outside of a transaction, and no privileges except those for inserting events.
    ///
    /// # Errors
    ///
    /// [`CheckError::Differences`] with every difference, or [`CheckError::Postgres`].
    pub async fn check(&self, client: impl OutboxClient) -> Result<RelayTopics, CheckError> {
        let template = self.sets_template.then_some(&self.template);
        agreement::check(&self.insert.table, template, client).await
    }

    /// Inserts an event in the transaction: an [`Event`], or a reference to an [`OutboxEvent`](crate::OutboxEvent). It is
    /// published only if the transaction commits.
    ///
    /// This needs one round trip. The first call needs another one, to learn the type of the payload column. All drivers except
    /// tokio-postgres and postgres prepare a statement when a connection first uses it, which needs another one too. If you drop
    /// the future, roll back, because the event may be in the transaction.
    ///
    /// # Errors
    ///
    /// After [`Error::InvalidEvent`] and [`Error::Json`], the transaction is still usable. After any other error, roll back: an
    /// event is missing. PostgreSQL accepts nothing else, except after [`Error::UnsupportedPayload`] and [`Error::NotStored`].
    pub async fn enqueue(
        &self,
        transaction: impl OutboxTransaction,
        event: impl IntoEvent,
    ) -> Result<EventId, Error> {
        let event = event.into_event()?;
        let id = event.id();
        self.insert(transaction, &mut [event]).await?;
        Ok(id)
    }

    /// Inserts many events in the transaction, in their order: all of them or, after an error, none. To mix typed events of
    /// several types, create each with [`Event::of`].
    ///
    /// Round trips are the same as for [`Outbox::enqueue`], or none without events. The events are sent in one message, which
    /// PostgreSQL limits to 1 GB. Split larger batches. The errors are the same too.
    pub async fn enqueue_many(
        &self,
        transaction: impl OutboxTransaction,
        events: impl IntoIterator<Item = impl IntoEvent>,
    ) -> Result<Vec<EventId>, Error> {
        let mut events: Vec<Event> = events.into_iter().map(Convert::into_event).collect::<Result<_, _>>()?;
        if !events.is_empty() {
            self.insert(transaction, &mut events).await?;
        }
        Ok(events.iter().map(Event::id).collect())
    }

    async fn insert(&self, transaction: impl OutboxTransaction, events: &mut [Event]) -> Result<(), Error> {
        #[cfg(feature = "opentelemetry")]
        crate::trace_context::add(events);
        check(events, &self.template)?;
        let stored = self.insert.run(transaction, events).await?;
        let given = events.len() as u64;
        if stored != given {
            return Err(Error::NotStored { table: self.insert.table.to_string(), given, stored });
        }
        Ok(())
    }
}

/// Inserts an event into the default [`Outbox`]: see [`Outbox::enqueue`].
pub async fn enqueue(transaction: impl OutboxTransaction, event: impl IntoEvent) -> Result<EventId, Error> {
    DEFAULT.enqueue(transaction, event).await
}

/// Inserts many events into the default [`Outbox`]: see [`Outbox::enqueue_many`].
pub async fn enqueue_many(
    transaction: impl OutboxTransaction,
    events: impl IntoIterator<Item = impl IntoEvent>,
) -> Result<Vec<EventId>, Error> {
    DEFAULT.enqueue_many(transaction, events).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_templates_are_checked_when_the_outbox_is_created() {
        assert!(matches!(Outbox::new("outbox; DROP TABLE orders"), Err(Error::TableName(_))));
        assert!(matches!(Outbox::default().topic_template("a b"), Err(Error::TopicTemplate(_))));
    }
}
