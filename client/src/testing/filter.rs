use std::fmt;

use crate::outbox::Outbox;
use crate::statement::{Argument, Kind, Statement};
use crate::typed::OutboxEvent;

/// Whether the filter selects the event, then the columns of an event.
const COLUMNS: &[Kind] =
    &[Kind::Flag, Kind::Text, Kind::Text, Kind::Text, Kind::Text, Kind::Text, Kind::Bytes];

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
/// use pg_outbox::{Outbox, testing::Filter};
///
/// let placed = Filter::event("order", "OrderPlaced").key(42).outbox(&Outbox::new("app.outbox")?);
/// let of_two_orders = Filter::new().aggregate_type("order").keys([42, 43]).with_committed();
/// # Ok::<(), pg_outbox::Error>(())
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
    pub fn new() -> Filter {
        Filter::default()
    }

    /// Selects events of an aggregate type and an event type.
    pub fn event(aggregate_type: impl Into<String>, event_type: impl Into<String>) -> Filter {
        Filter {
            aggregate_type: Some(aggregate_type.into()),
            event_type: Some(event_type.into()),
            ..Filter::default()
        }
    }

    /// Selects events of a typed event's aggregate type and event type.
    pub fn of<E: OutboxEvent>() -> Filter {
        Filter::event(E::AGGREGATE_TYPE, E::EVENT_TYPE)
    }

    /// Selects events of this aggregate type.
    pub fn aggregate_type(self, aggregate_type: impl Into<String>) -> Filter {
        Filter { aggregate_type: Some(aggregate_type.into()), ..self }
    }

    /// Selects events with this key (the aggregate ID). If you call it again, events with any of the keys are selected.
    pub fn key(self, key: impl fmt::Display) -> Filter {
        self.keys([key])
    }

    /// Selects events with any of these keys, in addition to those of earlier calls. If there are no keys at all, nothing is
    /// selected.
    pub fn keys(mut self, keys: impl IntoIterator<Item = impl fmt::Display>) -> Filter {
        self.keys.get_or_insert_default().extend(keys.into_iter().map(|key| key.to_string()));
        self
    }

    /// Looks at an outbox other than the default one.
    pub fn outbox(self, outbox: &Outbox) -> Filter {
        Filter { outbox: outbox.clone(), ..self }
    }

    /// Also looks at unsent events that other transactions have committed. Select keys that no other test uses.
    pub fn with_committed(self) -> Filter {
        Filter { with_committed: true, ..self }
    }

    /// The keys, as the argument of a statement.
    pub(super) fn key_texts(&self) -> Option<Vec<&str>> {
        self.keys.as_ref().map(|keys| keys.iter().map(String::as_str).collect())
    }

    /// Reads all events that the test looks at, and whether the filter selects them. A failed assertion lists all of them.
    pub(super) fn select<'a>(&'a self, keys: Option<&'a [&'a str]>) -> (Statement, Vec<Argument<'a>>) {
        let (condition, arguments) = self.condition(keys);
        let scope = if self.with_committed { "true" } else { IS_OWN };
        let table = &self.outbox.insert.table;
        let events = format!(
            "SELECT {condition} AS is_selected, event.*
             FROM {table} AS event,
                  (SELECT pg_current_xact_id_if_assigned()::text::bigint) AS own (xid)
             WHERE sent_at IS NULL AND {scope}"
        );
        (statement(&events), arguments)
    }

    /// Deletes and reads the selected events.
    pub(super) fn drain<'a>(&'a self, keys: Option<&'a [&'a str]>) -> (Statement, Vec<Argument<'a>>) {
        let (condition, arguments) = self.condition(keys);
        let table = &self.outbox.insert.table;
        let events = format!(
            "DELETE FROM {table} AS event WHERE sent_at IS NULL AND {condition}
             RETURNING true AS is_selected, event.*"
        );
        (statement(&events), arguments)
    }

    fn condition<'a>(&'a self, keys: Option<&'a [&'a str]>) -> (String, Vec<Argument<'a>>) {
        let (mut condition, mut arguments) = ("(true".to_owned(), Vec::new());
        for (column, argument) in [
            ("aggregate_type =", self.aggregate_type.as_deref().map(Argument::Text)),
            ("event_type =", self.event_type.as_deref().map(Argument::Text)),
            ("aggregate_id = ANY", keys.map(Argument::Texts)),
        ] {
            arguments.extend(argument);
            if argument.is_some() {
                condition += &format!(" AND {column} (${})", arguments.len());
            }
        }
        (condition + ")", arguments)
    }
}

fn statement(events: &str) -> Statement {
    let sql = format!(
        "WITH event AS ({events})
         SELECT is_selected, event_id::text, aggregate_type, aggregate_id, event_type, headers::text,
                CASE WHEN pg_typeof(payload) = 'bytea'::regtype THEN decode(substr(payload::text, 3), 'hex')
                     ELSE convert_to(payload::text, 'UTF8') END
         FROM event ORDER BY id"
    );
    Statement::new(sql, COLUMNS)
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
        let keys = filter.key_texts();
        let (condition, arguments) = filter.condition(keys.as_deref());
        assert_eq!(condition, "(true AND aggregate_type = ($1) AND aggregate_id = ANY ($2))");
        assert_eq!(arguments.len(), 2);
        assert_eq!(Filter::new().condition(None).0, "(true)");
    }
}
