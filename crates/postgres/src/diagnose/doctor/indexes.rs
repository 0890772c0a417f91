//! Finds unused and invalid indexes of the outbox. The checks at start verify the pending index.

use super::Context;
use relay::failure::PostgresFault;
use settings::doctor::Finding;
use settings::doctor::codes::{INDEX_INVALID, INDEX_UNUSED};
use settings::text;
use tokio_postgres::types::Type;

const DOING: &str = "reading the indexes";
/// An index counts as unused only after this many inserts and updates.
const ROWS_MIN: i64 = 1_000;

const READ: &str = "
SELECT quote_ident(s.schemaname) || '.' || quote_ident(s.indexrelname), i.indisvalid AND i.indisready,
       coalesce(s.idx_scan, 0), i.indisunique OR i.indisreplident,
       coalesce(t.n_tup_ins, 0) + coalesce(t.n_tup_upd, 0), pg_relation_size(i.indexrelid)
FROM pg_stat_user_indexes AS s
JOIN pg_index AS i ON i.indexrelid = s.indexrelid
JOIN pg_stat_user_tables AS t ON t.relid = s.relid
WHERE s.relid = $1::text::regclass AND s.indexrelname <> $2::text
ORDER BY 1";

/// With `pending_is_broken`, an invalid index may be the pending one under another name, which is already a finding.
pub(super) async fn findings(
    context: &Context<'_>,
    pending_is_broken: bool,
) -> Result<Vec<Finding>, PostgresFault> {
    let (table, pending) = (context.table.quoted(), context.table.pending_index_name());
    let rows = context.rows(DOING, READ, &[(&table, Type::TEXT), (&pending, Type::TEXT)]).await?;
    let mut findings = Vec::new();
    for row in &rows {
        let (name, valid, scans, needed): (&str, bool, i64, bool) =
            (row.get(0), row.get(1), row.get(2), row.get(3));
        let (changes, bytes): (i64, i64) = (row.get(4), row.get(5));
        let remedy = format!("DROP INDEX CONCURRENTLY {name};");
        let place = context.table.to_string();
        if !valid && !pending_is_broken {
            let problem = format!("the index {name} is invalid");
            findings.push(INDEX_INVALID.found(place, problem, remedy));
        } else if valid && !needed && scans == 0 && changes >= ROWS_MIN {
            let problem = format!("the index {name} ({}) was never used", text::bytes(bytes));
            findings.push(INDEX_UNUSED.found(place, problem, remedy));
        }
    }
    Ok(findings)
}
