//! Compiles only if transactions are the only `OutboxTransaction`s and the futures can be spawned.
//!
//! The `compile_fail` examples in the documentation of the trait do not test this: stable rustdoc accepts any error.

use pg_outbox::{Event, OutboxTransaction};

fn is_transaction<T: OutboxTransaction>() {}

#[test]
fn transactions_are_accepted() {
    is_transaction::<&tokio_postgres::Transaction<'_>>();
    is_transaction::<&deadpool_postgres::Transaction<'_>>();
}

/// If both implementations apply to a type, `some_item` is ambiguous and does not compile.
trait NotATransaction<Marker> {
    fn some_item() {}
}
impl<T> NotATransaction<()> for T {}
impl<T: OutboxTransaction> NotATransaction<u8> for T {}

#[test]
fn clients_and_pools_are_rejected() {
    <&tokio_postgres::Client as NotATransaction<_>>::some_item();
    <&mut tokio_postgres::Client as NotATransaction<_>>::some_item();
    <&deadpool_postgres::Client as NotATransaction<_>>::some_item();
    <&deadpool_postgres::ClientWrapper as NotATransaction<_>>::some_item();
    <&deadpool_postgres::Pool as NotATransaction<_>>::some_item();
}

#[test]
fn futures_can_be_spawned() {
    fn is_send(_: impl Send) {}
    #[allow(dead_code)] // compiling is the test
    fn never(plain: &tokio_postgres::Transaction<'_>, pooled: &deadpool_postgres::Transaction<'_>) {
        let event = || Event::new("order", 1, "E").tombstone();
        is_send(pg_outbox::enqueue(plain, event()));
        is_send(pg_outbox::enqueue(pooled, event()));
        is_send(pg_outbox::enqueue_many(plain, vec![event()]));
        is_send(pg_outbox::enqueue_many(pooled, vec![event()]));
    }
}
