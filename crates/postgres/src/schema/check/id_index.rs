//! Checks that an index finds rows by ID. A table that `migrate` creates has a primary key for it.

use tokio_postgres::Client;
use tokio_postgres::types::Type;

use super::columns::place;
use super::fault::{SchemaFault, SchemaFaultKind};
use crate::table::{Column, TableName, fill, quote_identifier};

/// The suffix of the name of the index that [`create`] creates.
const SUFFIX: &str = "_id_key";

/// CONCURRENTLY, because a plain CREATE INDEX would block inserts.
const CREATE: &str = "CREATE UNIQUE INDEX CONCURRENTLY {name} ON {outbox} ({id_column});";

/// Whether there is a valid one, and whether building the one of this name was interrupted.
const READ: &str = "
SELECT coalesce(bool_or(i.indisunique AND i.indnkeyatts = 1 AND i.indpred IS NULL AND m.amname = 'btree'
                        AND a.attnum = i.indkey[0] AND i.indisvalid AND i.indisready), false),
       coalesce(bool_or(c.relname = $3::text AND NOT i.indisvalid), false)
FROM pg_index AS i
JOIN pg_class AS c ON c.oid = i.indexrelid
JOIN pg_am AS m ON m.oid = c.relam
LEFT JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attname = $2::text AND NOT a.attisdropped
WHERE i.indrelid = $1";

/// The state of the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IdIndex {
    pub(crate) is_valid: bool,
    /// Building it was interrupted.
    pub(crate) is_unfinished: bool,
}

/// The index's name, unquoted.
pub(crate) fn name(table: &TableName) -> String {
    format!("{}{SUFFIX}", table.table())
}

/// The statement that creates it.
pub(crate) fn create(table: &TableName) -> String {
    fill(CREATE, |placeholder| match placeholder {
        "name" => Some(quote_identifier(&name(table))),
        _ => table.value_of(placeholder),
    })
}

pub(crate) async fn read(
    client: &Client,
    table: &TableName,
    outbox: u32,
) -> Result<IdIndex, tokio_postgres::Error> {
    let (id, name) = (table.columns().name(Column::Id), name(table));
    let row =
        client.query_typed_one(READ, &[(&outbox, Type::OID), (&id, Type::TEXT), (&name, Type::TEXT)]).await?;
    Ok(IdIndex { is_valid: row.get(0), is_unfinished: row.get(1) })
}

pub(super) async fn faults(
    client: &Client,
    table: &TableName,
    outbox: u32,
) -> Result<Option<SchemaFault>, tokio_postgres::Error> {
    let index = read(client, table, outbox).await?;
    if index.is_valid {
        return Ok(None);
    }
    let create = create(table);
    let remedy = match index.is_unfinished {
        true => format!("DROP INDEX CONCURRENTLY {}; {create}", table.sibling(&name(table))),
        false => create,
    };
    let problem =
        "no unique index finds rows by it, so every search for new events would read the whole table";
    Ok(Some(SchemaFault::new(SchemaFaultKind::Column, place(table, Column::Id), problem, remedy)))
}
