//! What the macro generates.

#![allow(clippy::unwrap_used)]

use std::fmt::Display;

use pg_outbox::OutboxEvent;
use serde::Serialize;

fn parts<E: OutboxEvent>(event: &E) -> (&'static str, &'static str, String) {
    (E::AGGREGATE_TYPE, E::EVENT_TYPE, event.aggregate_id())
}

#[derive(Serialize, OutboxEvent)]
#[outbox(aggregate = "order", key = "order_id")]
struct OrderPaid {
    cents: i64,
    order_id: i64,
}

#[test]
fn the_event_type_is_the_name_of_the_struct() {
    assert_eq!(parts(&OrderPaid { cents: 1200, order_id: 42 }), ("order", "OrderPaid", "42".to_owned()));
}

#[derive(Serialize, OutboxEvent)]
#[outbox(aggregate = "order", event = "order_shipped")]
#[outbox(key = "0")]
struct OrderShipped(String, #[allow(dead_code)] u8);

#[test]
fn the_event_type_can_be_set_and_the_fields_of_a_tuple_are_numbered() {
    assert_eq!(parts(&OrderShipped("k".to_owned(), 0)), ("order", "order_shipped", "k".to_owned()));
}

#[derive(Serialize, OutboxEvent)]
#[outbox(aggregate = "order", key = "type")]
struct Borrowed<'a, K, const N: usize>
where
    K: Copy,
{
    r#type: K,
    customer: &'a str,
    #[serde(skip)]
    others: [u8; N],
}

#[test]
fn lifetimes_type_parameters_and_raw_names_are_supported() {
    let event = Borrowed { r#type: 'k', customer: "Ada", others: [1, 2] };
    assert_eq!(parts(&event), ("order", "Borrowed", "k".to_owned()));
    assert_eq!(event.others.len(), 2);
}

/// Names that the generated code could confuse with the standard library's.
mod hostile {
    #![allow(dead_code)]
    struct String;
    struct Serialize;
    trait ToString {}

    #[derive(serde::Serialize, pg_outbox::OutboxEvent)]
    #[outbox(aggregate = "order", key = "key")]
    pub struct Event {
        pub key: &'static str,
    }
}

#[test]
fn the_generated_code_depends_on_no_imports() {
    assert_eq!(parts(&hostile::Event { key: "k" }), ("order", "Event", "k".to_owned()));
}

mod facade {
    pub mod events {
        pub use pg_outbox::{__private, OutboxEvent};
    }
}

#[derive(Serialize, OutboxEvent)]
#[outbox(aggregate = "order", key = "key", crate = "facade::events")]
struct Reexported<K: Display> {
    key: K,
}

#[test]
fn the_path_of_the_crate_can_be_set() {
    assert_eq!(parts(&Reexported { key: 7 }), ("order", "Reexported", "7".to_owned()));
}

macro_rules! event {
    ($name:ident, $key:ident: $type:ty) => {
        #[derive(Serialize, OutboxEvent)]
        #[outbox(aggregate = "order", key = "order_id")]
        struct $name {
            $key: $type,
        }
    };
}

event!(OrderLost, order_id: u64);

#[test]
fn a_macro_can_define_events() {
    assert_eq!(parts(&OrderLost { order_id: 7 }), ("order", "OrderLost", "7".to_owned()));
}
