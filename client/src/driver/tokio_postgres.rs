use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Error as PgError, Transaction};

use super::{Driver, OutboxTransaction, failure, is_stale};
use crate::columns::{Columns, Row};
use crate::error::Error;
use crate::event::Event;
use crate::insert::{Insert, PayloadKind};

impl OutboxTransaction for &Transaction<'_> {}

/// tokio-postgres keeps no prepared statements, and to prepare one for each call would double its round
/// trips. So the statement is sent with its types, which needs none; the one type that is not the same
/// everywhere is learnt by the first call.
impl Driver for &Transaction<'_> {
    async fn insert(self, insert: &Insert, events: &[Event]) -> Result<u64, Error> {
        let payload = match insert.known_payload() {
            Some(payload) => payload,
            None => {
                let statement = self.prepare(insert.one()).await.map_err(|error| failure(insert, error))?;
                insert.learn_payload(statement.params())?
            }
        };
        let inserted = match events {
            [event] => {
                let row = Row::of(event);
                execute(self, insert.one(), row.parameters(), one_types(payload)).await
            }
            _ => {
                let columns = Columns::of(events);
                execute(self, insert.many(payload), columns.parameters(), many_types(payload)).await
            }
        };
        inserted.map_err(|error| {
            if is_stale(&error) {
                insert.forget_payload();
            }
            failure(insert, error)
        })
    }
}

async fn execute(
    transaction: &Transaction<'_>,
    statement: &str,
    parameters: [&(dyn ToSql + Sync); 6],
    types: [Type; 6],
) -> Result<u64, PgError> {
    let mut types = types.into_iter();
    let typed = parameters.map(|parameter| (parameter, types.next().expect("as many types as parameters")));
    transaction.execute_typed(statement, &typed).await
}

fn one_types(payload: PayloadKind) -> [Type; 6] {
    let payload = match payload {
        PayloadKind::Json => Type::JSON,
        PayloadKind::Bytea => Type::BYTEA,
    };
    [Type::UUID, Type::TEXT, Type::TEXT, Type::TEXT, payload, Type::JSONB]
}

fn many_types(payload: PayloadKind) -> [Type; 6] {
    let payload = match payload {
        PayloadKind::Json => Type::JSON_ARRAY,
        PayloadKind::Bytea => Type::BYTEA_ARRAY,
    };
    [Type::UUID_ARRAY, Type::TEXT_ARRAY, Type::TEXT_ARRAY, Type::TEXT_ARRAY, payload, Type::JSONB_ARRAY]
}
