//! Checks the indexes of the outbox: the pending index, without which each claim would sort the whole outbox, and one that finds
//! rows by ID, which is the primary key of a table that `migrate` creates. And other properties of the table with which the relay
//! would read rows slowly, find the wrong rows, or publish rows that it can never record as sent.

use crate::columns::Column;
use crate::schema::columns::place;
use crate::schema::errors::{SchemaFault, SchemaFaultKind};
use crate::sql::{bare, sql};
use crate::table::{TableName, quote_identifier};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row};

/// The lane expression as printed by `pg_get_indexdef(index, 1, false)`, in every supported version. `{}` is the column.
const LANE_EXPRESSION: &str = "((hashtext({}) & 63))";
/// The same for a column of type varchar.
const LANE_EXPRESSION_VARCHAR: &str = "((hashtext(({})::text) & 63))";
const PREDICATE: &str = "({} IS NULL)";
/// Ascending, nulls last, for exactly two key columns.
const OPTIONS: &str = "0 0";

/// CONCURRENTLY, because a plain CREATE INDEX would block inserts.
pub(crate) const CREATE_PENDING: &str = "CREATE INDEX CONCURRENTLY {pending_index} ON {outbox} ((hashtext({aggregate_id_column}) & 63), {id_column}) WHERE {sent_at_column} IS NULL;";

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

pub(crate) async fn read_pending(
    client: &Client,
    table: &TableName,
    outbox: u32,
) -> Result<Pending, tokio_postgres::Error> {
    let [id, aggregate_id, sent_at] =
        [Column::Id, Column::AggregateId, Column::SentAt].map(|column| table.columns().name(column));
    let params: [(&(dyn ToSql + Sync), Type); 5] = [
        (&outbox, Type::OID),
        (&OPTIONS, Type::TEXT),
        (&id, Type::TEXT),
        (&aggregate_id, Type::TEXT),
        (&sent_at, Type::TEXT),
    ];
    let rows = client.query_typed(bare(sql!("check/indexes")), &params).await?;
    Ok(judge_indexes(rows.iter().map(Index::from).collect(), table))
}

pub(super) async fn pending_faults(
    client: &Client,
    table: &TableName,
    outbox: u32,
) -> Result<Vec<SchemaFault>, tokio_postgres::Error> {
    let (create, quoted) = (table.render(CREATE_PENDING), |name: &str| table.sibling(name));
    let (problem, remedy) = match read_pending(client, table, outbox).await? {
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

fn judge_indexes(mut indexes: Vec<Index>, table: &TableName) -> Pending {
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

/// The suffix of the name of the index that [`create_id_index`] creates.
const SUFFIX: &str = "_id_key";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IdIndex {
    pub(crate) is_valid: bool,
    /// Building it was interrupted.
    pub(crate) is_unfinished: bool,
}

/// The index's name, unquoted.
pub(crate) fn id_index_name(table: &TableName) -> String {
    format!("{}{SUFFIX}", table.table())
}

/// The statement that creates it. CONCURRENTLY, because a plain CREATE INDEX would block inserts.
pub(crate) fn create_id_index(table: &TableName) -> String {
    format!(
        "CREATE UNIQUE INDEX CONCURRENTLY {} ON {} ({});",
        quote_identifier(&id_index_name(table)),
        table.quoted(),
        table.column(Column::Id)
    )
}

pub(crate) async fn read_id_index(
    client: &Client,
    table: &TableName,
    outbox: u32,
) -> Result<IdIndex, tokio_postgres::Error> {
    let (id, name) = (table.columns().name(Column::Id), id_index_name(table));
    let params: [(&(dyn ToSql + Sync), Type); 3] =
        [(&outbox, Type::OID), (&id, Type::TEXT), (&name, Type::TEXT)];
    let row = client.query_typed_one(bare(sql!("check/id_index")), &params).await?;
    Ok(IdIndex { is_valid: row.get(0), is_unfinished: row.get(1) })
}

pub(super) async fn id_index_faults(
    client: &Client,
    table: &TableName,
    outbox: u32,
) -> Result<Option<SchemaFault>, tokio_postgres::Error> {
    let index = read_id_index(client, table, outbox).await?;
    if index.is_valid {
        return Ok(None);
    }
    let create = create_id_index(table);
    let remedy = match index.is_unfinished {
        true => format!("DROP INDEX CONCURRENTLY {}; {create}", table.sibling(&id_index_name(table))),
        false => create,
    };
    let problem =
        "no unique index finds rows by it, so every search for new events would read the whole table";
    Ok(Some(SchemaFault::new(SchemaFaultKind::Column, place(table, Column::Id), problem, remedy)))
}

/// The columns that statements compare or hash.
const COMPARED: [Column; 4] = [Column::AggregateType, Column::AggregateId, Column::EventType, Column::Topic];

pub(crate) async fn hazard_faults(
    client: &Client,
    table: &TableName,
    outbox: u32,
) -> Result<Vec<SchemaFault>, tokio_postgres::Error> {
    let compared: Vec<&str> = COMPARED.map(|column| table.columns().name(column)).to_vec();
    let params: [(&(dyn ToSql + Sync), Type); 2] = [(&outbox, Type::OID), (&compared, Type::TEXT_ARRAY)];
    let rows = client.query_typed(bare(sql!("check/hazards")), &params).await?;
    Ok(rows.iter().map(|row| hazard_fault(row, table)).collect())
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
    let rows = client.query_typed(bare(sql!("check/unidentified")), &params).await?;
    Ok(rows.first().map(|row| {
        let index =
            row.get::<_, Option<String>>(1).unwrap_or_else(|| quote_identifier(&id_index_name(table)));
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

fn hazard_fault(row: &Row, table: &TableName) -> SchemaFault {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::series::MIGRATIONS;

    #[test]
    fn the_remedy_creates_the_index_of_the_migration() {
        let table = TableName::new("s", "t").unwrap();
        let plain = table.render(&CREATE_PENDING.replace(" CONCURRENTLY", ""));
        assert!(
            MIGRATIONS.iter().any(|migration| table.render(migration.template).contains(&plain)),
            "{plain}"
        );
    }
}
