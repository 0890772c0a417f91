//! Checks for properties of the outbox table with which the relay would read rows slowly, find the wrong rows, or publish rows
//! that it can never record as sent.

use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row};

use super::columns::place;
use super::fault::{SchemaFault, SchemaFaultKind};
use super::id_index;
use crate::table::{Column, TableName, quote_identifier};

/// Children: their rows are found through the parent, but not with the parent's indexes, and the reaper does not see their
/// pages (PostgreSQL manual, "Inheritance").
/// Rules: they replace the relay's UPDATE or DELETE (PostgreSQL manual, "Rules on INSERT, UPDATE, and DELETE").
const READ: &str = "
SELECT 'child', i.inhrelid::regclass::text FROM pg_inherits AS i WHERE i.inhparent = $1
UNION ALL
SELECT 'rule', quote_ident(r.rulename) FROM pg_rewrite AS r
WHERE r.ev_class = $1 AND r.ev_type IN ('2', '4') AND r.ev_enabled IN ('O', 'A')
UNION ALL
SELECT 'collation', a.attname::text FROM pg_attribute AS a JOIN pg_collation AS c ON c.oid = a.attcollation
WHERE a.attrelid = $1 AND a.attname = ANY ($2) AND NOT a.attisdropped AND NOT c.collisdeterministic
ORDER BY 1, 2";

/// The publication for which the server needs a replica identity, which the table does not have (PostgreSQL manual, "Replica
/// Identity"), and the index that can serve as one.
const UNIDENTIFIED: &str = "
SELECT quote_ident(p.pubname), (
    SELECT quote_ident(x.relname) FROM pg_index AS i JOIN pg_class AS x ON x.oid = i.indexrelid
    JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0] AND a.attname = $4::text AND a.attnotnull
    WHERE i.indrelid = c.oid AND i.indisunique AND i.indimmediate AND i.indisvalid AND i.indnkeyatts = 1 AND i.indpred IS NULL
    ORDER BY i.indisprimary DESC LIMIT 1)
FROM pg_class AS c
JOIN pg_publication_tables AS t ON t.schemaname = $2::text AND t.tablename = $3::text
JOIN pg_publication AS p ON p.pubname = t.pubname AND (p.pubupdate OR p.pubdelete)
WHERE c.oid = $1 AND CASE c.relreplident
    WHEN 'd' THEN NOT EXISTS (SELECT FROM pg_index AS i WHERE i.indrelid = c.oid AND i.indisprimary AND i.indisvalid)
    WHEN 'i' THEN NOT EXISTS (SELECT FROM pg_index AS i WHERE i.indrelid = c.oid AND i.indisreplident AND i.indisvalid)
    ELSE c.relreplident = 'n' END
LIMIT 1";

/// The columns that statements compare or hash.
const COMPARED: [Column; 4] = [Column::AggregateType, Column::AggregateId, Column::EventType, Column::Topic];

pub(crate) async fn faults(
    client: &Client,
    table: &TableName,
    outbox: u32,
) -> Result<Vec<SchemaFault>, tokio_postgres::Error> {
    let compared: Vec<&str> = COMPARED.map(|column| table.columns().name(column)).to_vec();
    let rows = client.query_typed(READ, &[(&outbox, Type::OID), (&compared, Type::TEXT_ARRAY)]).await?;
    Ok(rows.iter().map(|row| fault(row, table)).collect())
}

/// A table whose changes a publication contains, although nothing identifies its rows.
pub(crate) struct Unidentified {
    publication: String,
    /// The statement that gives it a replica identity. Its index may not exist yet.
    pub(crate) remedy: String,
}

pub(crate) async fn unidentified(
    client: &Client,
    table: &TableName,
    outbox: u32,
) -> Result<Option<Unidentified>, tokio_postgres::Error> {
    let (schema, name, id) = (table.schema(), table.table(), table.columns().name(Column::Id));
    let params: [(&(dyn ToSql + Sync), Type); 4] =
        [(&outbox, Type::OID), (&schema, Type::TEXT), (&name, Type::TEXT), (&id, Type::TEXT)];
    let rows = client.query_typed(UNIDENTIFIED, &params).await?;
    Ok(rows.first().map(|row| {
        let index =
            row.get::<_, Option<String>>(1).unwrap_or_else(|| quote_identifier(&id_index::name(table)));
        let remedy = format!("ALTER TABLE {} REPLICA IDENTITY USING INDEX {index};", table.quoted());
        Unidentified { publication: row.get(0), remedy }
    }))
}

impl Unidentified {
    pub(super) fn fault(self, table: &TableName) -> SchemaFault {
        let problem = format!(
            "it has no replica identity, but the publication {} contains it, so the server rejects every update and delete of \
             the relay",
            self.publication
        );
        SchemaFault::new(SchemaFaultKind::Relation, table, problem, self.remedy)
    }
}

fn fault(row: &Row, table: &TableName) -> SchemaFault {
    let (hazard, name): (&str, &str) = (row.get(0), row.get(1));
    let outbox = table.quoted();
    match hazard {
        "child" => SchemaFault::new(
            SchemaFaultKind::Relation,
            table,
            format!(
                "the table {name} inherits from it: the relay would find the rows of {name} without an index, and never delete \
                 them"
            ),
            format!("move the rows of {name} to {outbox}, then run: ALTER TABLE {name} NO INHERIT {outbox};"),
        ),
        "rule" => SchemaFault::new(
            SchemaFaultKind::Relation,
            table,
            format!("the rule {name} replaces updates or deletes, so the relay could not record sent events"),
            format!("DROP RULE {name} ON {outbox};"),
        ),
        _ => {
            let column = COMPARED.into_iter().find(|column| table.columns().name(*column) == name);
            let problem =
                "its collation is nondeterministic, so pauses and blocks would not match its values";
            let remedy = format!(
                "ALTER TABLE {outbox} ALTER COLUMN {sql} TYPE text COLLATE \"default\";",
                sql = quote_identifier(name)
            );
            let place = column.map_or_else(|| table.to_string(), |column| place(table, column));
            SchemaFault::new(SchemaFaultKind::Column, place, problem, remedy)
        }
    }
}
