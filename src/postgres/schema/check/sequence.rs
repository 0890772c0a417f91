//! Checks the sequence of the ids, which determines the order within a key.

use tokio_postgres::types::Type;
use tokio_postgres::{Client, Row};

use super::columns::place;
use super::fault::{SchemaFault, SchemaFaultKind};
use crate::postgres::table::{Column, TableName, quote_identifier};

/// The sequence of the id column, whether it is an identity column or a bigserial.
const READ: &str = "
SELECT s.nspname::text, c.relname::text, q.seqcache, q.seqincrement, q.seqcycle
FROM pg_attribute AS a
JOIN pg_depend AS d ON d.refclassid = 'pg_class'::regclass AND d.refobjid = a.attrelid AND d.refobjsubid = a.attnum
                   AND d.classid = 'pg_class'::regclass AND d.deptype IN ('a', 'i')
JOIN pg_sequence AS q ON q.seqrelid = d.objid
JOIN pg_class AS c ON c.oid = q.seqrelid JOIN pg_namespace AS s ON s.oid = c.relnamespace
WHERE a.attrelid = $1 AND a.attname = $2::text";

/// The new sequence starts after the existing ids.
const NUMBER: &str = "ALTER TABLE {outbox} ALTER COLUMN {id_column} ADD GENERATED ALWAYS AS IDENTITY (CACHE 1); \
     SELECT setval(pg_get_serial_sequence({outbox_literal}, {id_literal}), coalesce(max({id_column}), 0) + 1, false) \
     FROM {outbox};";

pub(crate) async fn faults(
    client: &Client,
    table: &TableName,
    outbox: u32,
) -> Result<Vec<SchemaFault>, tokio_postgres::Error> {
    let id = table.columns().name(Column::Id);
    let rows = client.query_typed(READ, &[(&outbox, Type::OID), (&id, Type::TEXT)]).await?;
    if rows.is_empty() {
        let problem = "the IDs do not come from a sequence of the table, so their order is undefined";
        let place = place(table, Column::Id);
        return Ok(vec![SchemaFault::new(SchemaFaultKind::Sequence, place, problem, table.render(NUMBER))]);
    }
    Ok(rows.iter().flat_map(|row| sequence_faults(row, table)).collect())
}

fn sequence_faults(row: &Row, table: &TableName) -> Vec<SchemaFault> {
    let (cache, increment, cycles): (i64, i64, bool) = (row.get(2), row.get(3), row.get(4));
    let sequence = format!("{}.{}", quote_identifier(row.get(0)), quote_identifier(row.get(1)));
    let place = place(table, Column::Id);
    let mut faults = Vec::new();
    let mut fault = |problem: String, remedy: String| {
        faults.push(SchemaFault::new(SchemaFaultKind::Sequence, &place, problem, remedy));
    };
    if cache != 1 {
        fault(
            format!("the sequence has CACHE {cache}: sessions get IDs out of order, which reorders events"),
            format!(
                "ALTER SEQUENCE {sequence} CACHE 1; then reconnect the writers, because they keep their cached IDs"
            ),
        );
    }
    if increment != 1 {
        fault(
            format!("the sequence has INCREMENT {increment}"),
            format!("ALTER SEQUENCE {sequence} INCREMENT 1;"),
        );
    }
    if cycles {
        fault(
            "the sequence has CYCLE: IDs would restart and reorder events".to_owned(),
            format!("ALTER SEQUENCE {sequence} NO CYCLE;"),
        );
    }
    faults
}
