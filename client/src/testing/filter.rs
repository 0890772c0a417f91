use std::fmt;

use crate::call::{Argument, Call, Kind};
use crate::outbox::Outbox;
use crate::typed::OutboxEvent;

/// Whether the filter selects the event, then the columns of an event.
const COLUMNS: &[Kind] =
    &[Kind::Flag, Kind::Text, Kind::Text, Kind::Text, Kind::Text, Kind::Text, Kind::Text, Kind::Text];

/// True for rows that this transaction has inserted. Its savepoints have transaction IDs of their own, which follow its ID.
/// PostgreSQL reports the transaction IDs of an open transaction as in progress. The rows of other open transactions are not
/// visible. `xmin` has 32 bits, so the difference is computed modulo 2^32.
const IS_OWN: &str = "
    CASE WHEN (event.xmin::text::bigint - own.xid) & 4294967295 < 2147483648
         THEN pg_xact_status((own.xid + ((event.xmin::text::bigint - own.xid) & 4294967295))::text::xid8)
              = 'in progress'
         ELSE false END";

/// Selects the events that a test looks at.
///
/// A filter without conditions selects every event that the transaction has inserted into the default outbox.
///
/// ```
/// # #[cfg(feature = "tokio-postgres")] {
/// use pg_outbox::testing::Filter;
///
/// let placed = Filter::event("order", "OrderPlaced").key(42);
/// let of_two_orders = Filter::new().keys([42, 43]);
/// # }
/// ```
#[derive(Debug, Clone, Default)]
#[must_use = "a filter does nothing until it is passed to a function of this module"]
pub struct Filter {
    outbox: Outbox,
    aggregate_type: Option<String>,
    event_type: Option<String>,
    keys: Option<Vec<String>>,
    with_committed: bool,
}

impl Filter {
    /// Selects every event.
    ///
    /// ```
    /// let all = pg_outbox::testing::Filter::new();
    /// ```
    pub fn new() -> Filter {
        Filter::default()
    }

    /// Selects events of an aggregate type and an event type.
    ///
    /// ```
    /// let placed = pg_outbox::testing::Filter::event("order", "OrderPlaced");
    /// ```
    pub fn event(aggregate_type: impl Into<String>, event_type: impl Into<String>) -> Filter {
        Filter {
            aggregate_type: Some(aggregate_type.into()),
            event_type: Some(event_type.into()),
            ..Filter::default()
        }
    }

    /// Selects events of a typed event's aggregate type and event type.
    ///
    /// ```
    /// # #[cfg(all(feature = "tokio-postgres", feature = "derive"))] {
    /// # #[derive(serde::Serialize, pg_outbox::OutboxEvent)]
    /// # #[outbox(aggregate = "order", key = "order_id")]
    /// # struct OrderPaid { order_id: i64 }
    /// let paid = pg_outbox::testing::Filter::of::<OrderPaid>().key(42);
    /// # }
    /// ```
    pub fn of<E: OutboxEvent>() -> Filter {
        Filter::event(E::AGGREGATE_TYPE, E::EVENT_TYPE)
    }

    /// Selects events of this aggregate type.
    ///
    /// ```
    /// let of_orders = pg_outbox::testing::Filter::new().aggregate_type("order");
    /// ```
    pub fn aggregate_type(self, aggregate_type: impl Into<String>) -> Filter {
        Filter { aggregate_type: Some(aggregate_type.into()), ..self }
    }

    /// Selects events with this key (the aggregate ID). If you call it again, events with any of the keys are selected.
    ///
    /// ```
    /// let of_one_order = pg_outbox::testing::Filter::new().key(42);
    /// ```
    pub fn key(self, key: impl fmt::Display) -> Filter {
        self.keys([key])
    }

    /// Selects events with any of these keys, in addition to those of earlier calls. If there are no keys at all, nothing is
    /// selected.
    ///
    /// ```
    /// let of_two_orders = pg_outbox::testing::Filter::new().keys([42, 43]);
    /// ```
    pub fn keys(mut self, keys: impl IntoIterator<Item = impl fmt::Display>) -> Filter {
        self.keys.get_or_insert_default().extend(keys.into_iter().map(|key| key.to_string()));
        self
    }

    /// Looks at an outbox other than the default one.
    ///
    /// ```
    /// # #[cfg(feature = "tokio-postgres")] {
    /// use pg_outbox::{Outbox, testing::Filter};
    ///
    /// let outbox = Outbox::new("app.outbox")?;
    /// let placed = Filter::event("order", "OrderPlaced").outbox(&outbox);
    /// # }
    /// # Ok::<(), pg_outbox::Error>(())
    /// ```
    pub fn outbox(self, outbox: &Outbox) -> Filter {
        Filter { outbox: outbox.clone(), ..self }
    }

    /// Also looks at unsent events that other transactions have committed. Select keys that no other test uses.
    ///
    /// ```no_run
    /// # #[cfg(feature = "tokio-postgres")] mod example {
    /// use pg_outbox::testing::{self, Filter};
    ///
    /// # async fn example(tx: &tokio_postgres::Transaction<'_>, order_id: i64) -> Result<(), testing::Error> {
    /// let placed = Filter::event("order", "OrderPlaced").key(order_id).with_committed();
    /// testing::assert_enqueued(tx, placed).await?;
    /// # Ok(()) }
    /// # }
    /// ```
    pub fn with_committed(self) -> Filter {
        Filter { with_committed: true, ..self }
    }

    /// Reads all events that the test looks at, and whether the filter selects them. A failed assertion lists all of them.
    pub(super) fn select(&self) -> (Call, Values<'_>) {
        let (condition, values) = self.condition();
        let scope = if self.with_committed { "true" } else { IS_OWN };
        let table = self.outbox.table();
        let events = format!(
            "SELECT {condition} AS is_selected, event.*
             FROM {table} AS event,
                  (SELECT pg_current_xact_id_if_assigned()::text::bigint) AS own (xid)
             WHERE sent_at IS NULL AND {scope}"
        );
        (call(&events), values)
    }

    /// Deletes and reads the selected events.
    pub(super) fn drain(&self) -> (Call, Values<'_>) {
        let (condition, values) = self.condition();
        let table = self.outbox.table();
        let events = format!(
            "DELETE FROM {table} AS event WHERE sent_at IS NULL AND {condition}
             RETURNING true AS is_selected, event.*"
        );
        (call(&events), values)
    }

    fn condition(&self) -> (String, Values<'_>) {
        let keys = self.keys.as_ref().map(|keys| keys.iter().map(String::as_str).collect());
        let values = Values {
            aggregate_type: self.aggregate_type.as_deref(),
            event_type: self.event_type.as_deref(),
            keys,
        };
        let mut conditions = vec!["true".to_owned()];
        for (is_set, test) in [
            (values.aggregate_type.is_some(), "aggregate_type = $?"),
            (values.event_type.is_some(), "event_type = $?"),
            (values.keys.is_some(), "aggregate_id = ANY ($?)"),
        ] {
            if is_set {
                conditions.push(test.replace('?', &conditions.len().to_string()));
            }
        }
        (format!("({})", conditions.join(" AND ")), values)
    }
}

/// The arguments of a statement, in their order.
pub(super) struct Values<'a> {
    aggregate_type: Option<&'a str>,
    event_type: Option<&'a str>,
    keys: Option<Vec<&'a str>>,
}

impl Values<'_> {
    pub(super) fn as_arguments(&self) -> Vec<Argument<'_>> {
        let texts = [self.aggregate_type, self.event_type].into_iter().flatten().map(Argument::Text);
        texts.chain(self.keys.as_deref().map(Argument::Texts)).collect()
    }
}

fn call(events: &str) -> Call {
    let sql = format!(
        "WITH event AS ({events})
         SELECT is_selected, event_id::text, aggregate_type, aggregate_id, event_type, headers::text,
                pg_typeof(payload)::text, payload::text
         FROM event ORDER BY id"
    );
    Call::new(sql, COLUMNS)
}

impl fmt::Display for Filter {
    /// `event OrderPaid of order 42`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("event")?;
        if let Some(event_type) = &self.event_type {
            write!(f, " {event_type}")?;
        }
        if let Some(aggregate_type) = &self.aggregate_type {
            write!(f, " of {aggregate_type}")?;
        }
        match self.keys.as_deref() {
            Some([key]) => write!(f, " {key}"),
            Some(keys) => write!(f, " with a key of {keys:?}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_described_in_words() {
        assert_eq!(Filter::new().to_string(), "event");
        assert_eq!(Filter::event("order", "OrderPaid").key(42).to_string(), "event OrderPaid of order 42");
        assert_eq!(
            Filter::new().aggregate_type("order").keys([1, 2]).to_string(),
            r#"event of order with a key of ["1", "2"]"#
        );
    }

    #[test]
    fn each_parameter_occurs_once_and_in_order() {
        let filter = Filter::new().aggregate_type("order").key(1);
        let (condition, values) = filter.condition();
        assert_eq!(condition, "(true AND aggregate_type = $1 AND aggregate_id = ANY ($2))");
        assert_eq!(values.as_arguments().len(), 2);
        assert_eq!(Filter::new().condition().0, "(true)");
    }
}
