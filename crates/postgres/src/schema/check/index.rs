//! Checks the pending index. Without exactly this index, each claim would sort the whole outbox.

use tokio_postgres::types::Type;
use tokio_postgres::{Client, Row};

use super::fault::{SchemaFault, SchemaFaultKind};
use crate::table::{Column, TableName};

/// The lane expression as printed by `pg_get_indexdef(index, 1, false)`, in every supported version. `{}` is the column.
const LANE_EXPRESSION: &str = "((hashtext({}) & 63))";
/// The same for a column of type varchar.
const LANE_EXPRESSION_VARCHAR: &str = "((hashtext(({})::text) & 63))";
const PREDICATE: &str = "({} IS NULL)";
/// Ascending, nulls last, for exactly two key columns.
const OPTIONS: &str = "0 0";

/// CONCURRENTLY, because a plain CREATE INDEX would block inserts.
pub(crate) const CREATE: &str = "CREATE INDEX CONCURRENTLY {pending_index} ON {outbox} ((hashtext({aggregate_id_column}) & 63), {id_column}) WHERE {sent_at_column} IS NULL;";

/// All indexes of the outbox, because the pending index may have another name.
const READ: &str = "
SELECT c.relname::text, pg_get_indexdef(i.indexrelid), i.indisvalid AND i.indisready AND i.indislive,
       m.amname = 'btree' AND i.indoption::text = $2
           AND (SELECT bool_and(o.opcdefault) FROM pg_opclass AS o WHERE o.oid = ANY (i.indclass::oid[])),
       pg_get_indexdef(i.indexrelid, 1, false), pg_get_indexdef(i.indexrelid, 2, false),
       pg_get_expr(i.indpred, i.indrelid, false), quote_ident($3::text), quote_ident($4::text), quote_ident($5::text)
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
        let text = |column: usize| row.get::<_, Option<&str>>(column);
        let of = |expression: &str, column: usize| {
            Some(expression.replace("{}", text(column).unwrap_or_default()))
        };
        let (lane, predicate) = (text(4).map(str::to_owned), text(6).map(str::to_owned));
        let right_lane = lane == of(LANE_EXPRESSION, 8) || lane == of(LANE_EXPRESSION_VARCHAR, 8);
        Self {
            name: row.get(0),
            definition: row.get(1),
            usable: row.get(2),
            fits: row.get(3) && right_lane && text(5) == text(7) && predicate == of(PREDICATE, 9),
        }
    }
}

/// The state of the pending index.
pub(crate) enum Pending {
    Valid,
    /// Building the index of this name was interrupted.
    Invalid(String),
    /// An index has its name, but this definition.
    Different {
        name: String,
        definition: String,
    },
    Missing,
}

pub(crate) async fn read(
    client: &Client,
    table: &TableName,
    outbox: u32,
) -> Result<Pending, tokio_postgres::Error> {
    let [id, aggregate_id, sent_at] =
        [Column::Id, Column::AggregateId, Column::SentAt].map(|column| table.columns().name(column));
    let rows = client
        .query_typed(
            READ,
            &[
                (&outbox, Type::OID),
                (&OPTIONS, Type::TEXT),
                (&id, Type::TEXT),
                (&aggregate_id, Type::TEXT),
                (&sent_at, Type::TEXT),
            ],
        )
        .await?;
    Ok(judge(rows.iter().map(Index::from).collect(), table))
}

pub(super) async fn faults(
    client: &Client,
    table: &TableName,
    outbox: u32,
) -> Result<Vec<SchemaFault>, tokio_postgres::Error> {
    let (create, quoted) = (table.render(CREATE), |name: &str| table.sibling(name));
    let (problem, remedy) = match read(client, table, outbox).await? {
        Pending::Valid => return Ok(Vec::new()),
        Pending::Invalid(name) => (
            format!("the index {name} is not valid: building it was interrupted"),
            format!("REINDEX INDEX CONCURRENTLY {};", quoted(&name)),
        ),
        Pending::Different { name, definition } => (
            format!("the index {name} has a different definition: {definition}"),
            format!("DROP INDEX CONCURRENTLY {}; {create}", quoted(&name)),
        ),
        Pending::Missing => ("the pending index is missing".to_owned(), create),
    };
    Ok(vec![SchemaFault::new(SchemaFaultKind::Index, table, problem, remedy)])
}

fn judge(mut indexes: Vec<Index>, table: &TableName) -> Pending {
    if indexes.iter().any(|index| index.fits && index.usable) {
        return Pending::Valid;
    }
    let own = table.pending_index_name();
    // An invalid index of the right definition first.
    indexes.sort_by_key(|index| !index.fits);
    match indexes.into_iter().find(|index| index.fits || index.name == own) {
        Some(Index { fits: true, name, .. }) => Pending::Invalid(name),
        Some(Index { name, definition, .. }) => Pending::Different { name, definition },
        None => Pending::Missing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::migrate::MIGRATIONS;

    #[test]
    fn the_remedy_creates_the_index_of_the_migration() {
        let table = TableName::new("s", "t").unwrap();
        let plain = table.render(&CREATE.replace(" CONCURRENTLY", ""));
        assert!(
            MIGRATIONS.iter().any(|migration| table.render(migration.template).contains(&plain)),
            "{plain}"
        );
    }
}
