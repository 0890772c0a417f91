use serde::Serialize;

use crate::error::Error;
use crate::event::{Event, Payload};

/// A type whose values are events of one aggregate type and one event type. Its JSON is the payload.
///
/// `pg_outbox::enqueue(&tx, &OrderPaid { .. })` enqueues such a value. Derive the trait with the feature `derive`:
///
/// ```
/// # #[cfg(feature = "derive")] {
/// use pg_outbox::OutboxEvent;
///
/// #[derive(serde::Serialize, OutboxEvent)]
/// #[outbox(aggregate = "order", key = "order_id")]
/// struct OrderPaid {
///     order_id: i64,
///     cents: i64,
/// }
///
/// let paid = OrderPaid { order_id: 42, cents: 1200 };
/// assert_eq!((OrderPaid::AGGREGATE_TYPE, OrderPaid::EVENT_TYPE, paid.aggregate_id()), ("order", "OrderPaid", "42".into()));
/// # }
/// ```
///
/// | Option of `#[outbox(..)]` | |
/// |---|---|
/// | `aggregate = "order"` | Required. The aggregate type, which determines the topic. |
/// | `key = "order_id"` | Required. The field that contains the aggregate ID, which becomes the record's key. Its type implements `Display`. In a tuple struct, fields are numbered: `key = "0"`. |
/// | `event = "order_paid"` | The event type. The default is the name of the struct, unchanged: `OrderPaid`. |
/// | `crate = "my_crate::pg_outbox"` | The path to this crate, if it is not `::pg_outbox`. |
///
/// The event type is part of your interface to consumers. If you rename the struct, set `event` to the old name.
///
/// The derive macro needs a struct. For an enum, or for a key that consists of several fields, implement the trait:
///
/// ```
/// use pg_outbox::OutboxEvent;
///
/// #[derive(serde::Serialize)]
/// struct StockCounted {
///     warehouse: u16,
///     article: String,
///     pieces: u32,
/// }
///
/// impl OutboxEvent for StockCounted {
///     const AGGREGATE_TYPE: &'static str = "stock";
///     const EVENT_TYPE: &'static str = "StockCounted";
///
///     fn aggregate_id(&self) -> String {
///         format!("{}-{}", self.warehouse, self.article)
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an event of an outbox",
    label = "this type does not implement `OutboxEvent`",
    note = "add `#[derive(serde::Serialize, pg_outbox::OutboxEvent)]` and `#[outbox(aggregate = \"...\", key = \"...\")]` \
            to the struct; the derive macro needs the feature `derive` of pg-outbox",
    note = "or create an untyped event with `Event::new`"
)]
pub trait OutboxEvent: Serialize {
    /// The aggregate type, which determines the topic.
    const AGGREGATE_TYPE: &'static str;

    /// The event type, which becomes the header `event_type`.
    const EVENT_TYPE: &'static str;

    /// The aggregate ID, which becomes the record's key. Events of one aggregate reach consumers in commit order.
    fn aggregate_id(&self) -> String;
}

/// What [`enqueue`](crate::enqueue) accepts: an [`Event`], or a reference to an [`OutboxEvent`]. The trait is sealed.
///
/// ```
/// fn accepts(_: impl pg_outbox::IntoEvent) {}
///
/// accepts(pg_outbox::Event::new("order", 42, "OrderPaid").tombstone());
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an event that can be enqueued",
    label = "expected an `Event`, or a reference to an `OutboxEvent`",
    note = "derive `OutboxEvent` for a typed event, and pass it by reference: `&event`",
    note = "complete an untyped event with `.json(..)`, `.bytes(..)` or `.tombstone()`"
)]
pub trait IntoEvent: Convert {}

/// Not exported, which seals [`IntoEvent`].
pub trait Convert {
    fn into_event(self) -> Result<Event, Error>;
}

impl IntoEvent for Event<Payload> {}

impl Convert for Event<Payload> {
    fn into_event(self) -> Result<Event, Error> {
        Ok(self)
    }
}

impl<E: OutboxEvent + ?Sized> IntoEvent for &E {}

impl<E: OutboxEvent + ?Sized> Convert for &E {
    fn into_event(self) -> Result<Event, Error> {
        Event::of(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    /// The JSON of a map needs keys that are text.
    #[derive(Serialize)]
    struct Counted {
        key: &'static str,
        pieces: HashMap<(u8, u8), u8>,
    }

    impl OutboxEvent for Counted {
        const AGGREGATE_TYPE: &'static str = "stock";
        const EVENT_TYPE: &'static str = "counted";

        fn aggregate_id(&self) -> String {
            self.key.to_owned()
        }
    }

    #[test]
    fn a_typed_event_becomes_an_event_with_its_json() {
        let event = Event::of(&Counted { key: "a", pieces: HashMap::new() }).unwrap();
        assert_eq!(
            (event.aggregate_type.as_str(), event.aggregate_id.as_str(), event.event_type.as_str()),
            ("stock", "a", "counted")
        );
        assert_eq!(event.payload.0.as_deref(), Some(&br#"{"key":"a","pieces":{}}"#[..]));
        assert!(event.headers.is_empty());
    }

    #[test]
    fn a_typed_event_that_cannot_be_serialized_is_an_error() {
        let counted = Counted { key: "a", pieces: HashMap::from([((1, 2), 3)]) };
        assert!(matches!((&counted).into_event(), Err(Error::Json(_))));
    }
}
