//! Checks the pending index. Without exactly this index, each claim would sort the whole outbox.

use tokio_postgres::types::Type;
use tokio_postgres::{Client, Row};

use super::fault::{SchemaFault, SchemaFaultKind};
use crate::postgres::table::TableName;

/// The lane expression as printed by `pg_get_indexdef(index, 1, false)`, in every supported version.
const LANE_EXPRESSION: &str = "((hashtext(aggregate_id) & 63))";
/// The same for a column of type varchar.
const LANE_EXPRESSION_VARCHAR: &str = "((hashtext((aggregate_id)::text) & 63))";
const PREDICATE: &str = "(sent_at IS NULL)";
/// Ascending, nulls last, for exactly two key columns.
const OPTIONS: &str = "0 0";

/// CONCURRENTLY, because a plain CREATE INDEX would block inserts.
const CREATE: &str = "CREATE INDEX CONCURRENTLY {pending_index} ON {outbox} ((hashtext(aggregate_id) & 63), id) WHERE sent_at IS NULL;";

/// All indexes of the outbox, because the pending index may have another name.
const READ: &str = "
SELECT c.relname::text, pg_get_indexdef(i.indexrelid), i.indisvalid AND i.indisready AND i.indislive,
       m.amname = 'btree' AND i.indoption::text = $2
           AND (SELECT bool_and(o.opcdefault) FROM pg_opclass AS o WHERE o.oid = ANY (i.indclass::oid[])),
       pg_get_indexdef(i.indexrelid, 1, false), pg_get_indexdef(i.indexrelid, 2, false),
       pg_get_expr(i.indpred, i.indrelid, false)
FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid JOIN pg_am AS m ON m.oid = c.relam
WHERE i.indrelid = $1";

struct Index {
    name: String,
    definition: String,
    usable: bool,
    fits: bool,
}

impl From<&Row> for Index {
    fn from(row: &Row) -> Self {
        let (lane, id, predicate): (Option<&str>, Option<&str>, Option<&str>) =
            (row.get(4), row.get(5), row.get(6));
        let right_lane = lane == Some(LANE_EXPRESSION) || lane == Some(LANE_EXPRESSION_VARCHAR);
        Self {
            name: row.get(0),
            definition: row.get(1),
            usable: row.get(2),
            fits: row.get(3) && right_lane && id == Some("id") && predicate == Some(PREDICATE),
        }
    }
}

pub(super) async fn faults(
    client: &Client,
    table: &TableName,
    outbox: u32,
) -> Result<Vec<SchemaFault>, tokio_postgres::Error> {
    let rows = client.query_typed(READ, &[(&outbox, Type::OID), (&OPTIONS, Type::TEXT)]).await?;
    let indexes: Vec<Index> = rows.iter().map(Index::from).collect();
    Ok(judge(&indexes, table).into_iter().collect())
}

fn judge(indexes: &[Index], table: &TableName) -> Option<SchemaFault> {
    if indexes.iter().any(|index| index.fits && index.usable) {
        return None;
    }
    let qualified = |name: &str| table.sibling(name);
    let create = table.render(CREATE);
    let fault = |problem: String, remedy: String| {
        Some(SchemaFault::new(SchemaFaultKind::Index, table, problem, remedy))
    };
    if let Some(index) = indexes.iter().find(|index| index.fits) {
        let problem = format!("the index {} is not valid: building it was interrupted", index.name);
        return fault(problem, format!("REINDEX INDEX CONCURRENTLY {};", qualified(&index.name)));
    }
    if let Some(index) = indexes.iter().find(|index| index.name == table.pending_index_name()) {
        let problem = format!("the index {} has a different definition: {}", index.name, index.definition);
        return fault(problem, format!("DROP INDEX CONCURRENTLY {}; {create}", qualified(&index.name)));
    }
    fault("the pending index is missing".to_owned(), create)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::postgres::schema::migrate::MIGRATIONS;

    #[test]
    fn the_remedy_creates_the_index_of_the_migration() {
        let plain = CREATE.replace(" CONCURRENTLY", "");
        assert!(MIGRATIONS.iter().any(|migration| migration.template.contains(&plain)), "{plain}");
    }
}
