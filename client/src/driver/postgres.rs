//! The synchronous driver. Its calls block the thread, so the futures are ready when they are first polled.

use postgres::Client;
use postgres::Transaction;
use postgres::types::{ToSql, Type};

use super::tokio_postgres::{answers, is_stale, many_types, one_types, payload_type, typed};
use super::{Caller, OutboxClient};
use super::{Driver, OutboxTransaction, failure};
use crate::call::{Answer, Argument, Call};
use crate::columns::{Columns, Row};
use crate::error::{Error, PostgresError};
use crate::event::Event;
use crate::insert::Insert;

impl OutboxTransaction for &mut Transaction<'_> {}

/// Statements are sent with their types, as with tokio-postgres.
impl Driver for &mut Transaction<'_> {
    async fn insert(self, insert: &Insert, events: &[Event]) -> Result<u64, Error> {
        let payload = match insert.known_payload() {
            Some(payload) => payload,
            None => {
                let statement = self.prepare(insert.one()).map_err(|error| failure(insert, error.into()))?;
                insert.learn_payload(payload_type(statement.params()))?
            }
        };
        let inserted = match events {
            [event] => {
                let row = Row::of(event);
                self.execute_typed(insert.one(), &zip(row.parameters(), one_types(payload)))
            }
            _ => {
                let columns = Columns::of(events);
                self.execute_typed(insert.many(payload), &zip(columns.parameters(), many_types(payload)))
            }
        };
        inserted.map_err(|error| {
            if is_stale(&error) {
                insert.forget_payload();
            }
            failure(insert, error.into())
        })
    }

    async fn call(self, call: &Call, arguments: &[Argument<'_>]) -> Result<Vec<Answer>, PostgresError> {
        Ok(answers(call, &self.query_typed(call.sql(), &typed(arguments))?)?)
    }
}

impl OutboxClient for &mut Client {}

impl Caller for &mut Client {
    async fn call(&mut self, call: &Call, arguments: &[Argument<'_>]) -> Result<Vec<Answer>, PostgresError> {
        Ok(answers(call, &self.query_typed(call.sql(), &typed(arguments))?)?)
    }
}

type Parameter<'a> = &'a (dyn ToSql + Sync);

fn zip<'a>(parameters: [Parameter<'a>; 6], types: [Type; 6]) -> Vec<(Parameter<'a>, Type)> {
    parameters.into_iter().zip(types).collect()
}
