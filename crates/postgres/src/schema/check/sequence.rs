//! Checks the sequence of the ids, which determines the order within a key.

use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row};

use super::columns::place;
use super::fault::{SchemaFault, SchemaFaultKind};
use crate::table::{Column, TableName, quote_literal};

/// The sequence of the id column, whether it is an identity column or a bigserial.
const READ: &str = "
SELECT quote_ident(s.nspname) || '.' || quote_ident(c.relname), q.seqcache, q.seqincrement, q.seqcycle, a.attidentity = 'a',
       has_sequence_privilege(q.seqrelid, 'SELECT') AND has_schema_privilege(s.oid, 'USAGE')
           AND has_column_privilege(a.attrelid, a.attnum, 'SELECT')
FROM pg_attribute AS a
JOIN pg_depend AS d ON d.refclassid = 'pg_class'::regclass AND d.refobjid = a.attrelid AND d.refobjsubid = a.attnum
                   AND d.classid = 'pg_class'::regclass AND d.deptype IN ('a', 'i')
JOIN pg_sequence AS q ON q.seqrelid = d.objid
JOIN pg_class AS c ON c.oid = q.seqrelid JOIN pg_namespace AS s ON s.oid = c.relnamespace
WHERE a.attrelid = $1 AND a.attname = $2::text";

/// A sequence that the default of the column uses, but that does not belong to it, and the table to which it belongs.
const FOREIGN: &str = "
SELECT d.refobjid::regclass::text,
       (SELECT min(k.refobjid::regclass::text) FROM pg_depend AS k
        WHERE k.classid = 'pg_class'::regclass AND k.objid = d.refobjid AND k.refclassid = 'pg_class'::regclass
          AND k.refobjsubid > 0 AND k.deptype IN ('a', 'i'))
FROM pg_attribute AS a
JOIN pg_attrdef AS f ON f.adrelid = a.attrelid AND f.adnum = a.attnum
JOIN pg_depend AS d ON d.classid = 'pg_attrdef'::regclass AND d.objid = f.oid AND d.refclassid = 'pg_class'::regclass
JOIN pg_class AS c ON c.oid = d.refobjid AND c.relkind = 'S'
WHERE a.attrelid = $1 AND a.attname = $2::text";

/// The next ID, and the highest one. An inherited or pooled ID would be above the sequence.
const AHEAD: &str = "
SELECT n.next, o.highest FROM (SELECT last_value + is_called::integer AS next FROM {sequence}) AS n,
     (SELECT max({id_column}) AS highest FROM {outbox}) AS o
WHERE o.highest >= n.next";

/// For IDs that the application assigns: it works with every ORM, because no statement of the application names the column.
const SEPARATE: &str = "add a column for the order, which rewrites the table: ALTER TABLE {outbox} ADD COLUMN outbox_seq bigint \
     GENERATED ALWAYS AS IDENTITY (CACHE 1); and set [outbox.columns] id = \"outbox_seq\"";

pub(crate) async fn faults(
    client: &Client,
    table: &TableName,
    outbox: u32,
) -> Result<Vec<SchemaFault>, tokio_postgres::Error> {
    let id = table.columns().name(Column::Id);
    let params: [(&(dyn ToSql + Sync), Type); 2] = [(&outbox, Type::OID), (&id, Type::TEXT)];
    let rows = client.query_typed(READ, &params).await?;
    let mut faults = Vec::new();
    if rows.is_empty() {
        let foreign = client.query_typed(FOREIGN, &params).await?;
        let column = format!("{}.{}", table.quoted(), table.column(Column::Id));
        let found = foreign.first().map(|row| (row.get::<_, String>(0), row.get::<_, Option<String>>(1)));
        let (problem, remedy) = match found {
            Some((sequence, Some(owner))) => (
                format!("the IDs come from {sequence}, a sequence of the table {owner}"),
                format!(
                    "create a sequence that begins above the highest ID, and make it the default: CREATE SEQUENCE ... START WITH ... \
                     OWNED BY {column}; ALTER TABLE {outbox} ALTER COLUMN {id} SET DEFAULT nextval(...);",
                    outbox = table.quoted(),
                    id = table.column(Column::Id)
                ),
            ),
            Some((sequence, None)) => (
                format!("the sequence {sequence} does not belong to the column"),
                format!("ALTER SEQUENCE {sequence} OWNED BY {column};"),
            ),
            None => (
                "the IDs do not come from a sequence of the table: the application assigns them, so they need not follow the \
                 order of its commits"
                    .to_owned(),
                table.render(SEPARATE),
            ),
        };
        faults.push(SchemaFault::new(SchemaFaultKind::Sequence, place(table, Column::Id), problem, remedy));
    }
    for row in &rows {
        faults.extend(sequence_faults(row, table));
        if row.get(5) {
            faults.extend(behind(client, table, row).await?);
        }
    }
    Ok(faults)
}

/// After a switchover by logical replication or a restore of the rows alone, the next IDs would be below those of waiting events.
async fn behind(
    client: &Client,
    table: &TableName,
    row: &Row,
) -> Result<Option<SchemaFault>, tokio_postgres::Error> {
    let sequence: &str = row.get(0);
    // The name is no template: it may contain braces.
    let parts = AHEAD.split("{sequence}").map(|part| table.render(part));
    let sql = parts.collect::<Vec<_>>().join(sequence);
    let ahead = client.query_typed(&sql, &[]).await?;
    Ok(ahead.first().map(|ahead| {
        let (next, highest): (i64, i64) = (ahead.get(0), ahead.get(1));
        let problem = format!(
            "the sequence is behind: the next ID is {next}, but the table has ID {highest}, so new events would be published \
             before those that wait"
        );
        let (outbox, id) = (table.quoted(), table.column(Column::Id));
        let literal = quote_literal(sequence);
        let advance = format!("SELECT setval({literal}, (SELECT max({id}) FROM {outbox}));");
        let remedy = match row.get(4) {
            true => advance,
            false => format!("{advance} If the application assigns IDs itself, {}", table.render(SEPARATE)),
        };
        SchemaFault::new(SchemaFaultKind::Sequence, place(table, Column::Id), problem, remedy)
    }))
}

fn sequence_faults(row: &Row, table: &TableName) -> Vec<SchemaFault> {
    let (sequence, cache, increment): (&str, i64, i64) = (row.get(0), row.get(1), row.get(2));
    let (cycles, always): (bool, bool) = (row.get(3), row.get(4));
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
    if increment != 1 && always {
        fault(
            format!("the sequence has INCREMENT {increment}"),
            match increment > 0 {
                true => format!("ALTER SEQUENCE {sequence} INCREMENT 1;"),
                // It also has the limits and the value of a descending sequence.
                false => format!(
                    "ALTER SEQUENCE {sequence} INCREMENT 1 NO MINVALUE NO MAXVALUE RESTART WITH 1; with a number above the highest ID"
                ),
            },
        );
    } else if increment != 1 {
        fault(
            format!(
                "the sequence has INCREMENT {increment}: an ORM such as Hibernate assigns the IDs in blocks, so they do not \
                 follow the order of commits"
            ),
            table.render(SEPARATE),
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
