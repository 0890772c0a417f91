//! Indexes of the outbox that cost, and serve nobody. That the pending index is there, the check at start sees.

use super::Asked;
use crate::doctor::Finding;
use crate::doctor::codes::{INDEX_INVALID, INDEX_UNUSED};
use crate::relay::failure::Fault;
use tokio_postgres::types::Type;

const DOING: &str = "reading the indexes";
/// Before so many rows were inserted or marked, that an index was not used says little.
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

/// `pending_is_broken`: an invalid index may be the pending one under another name, and is reported as that already.
pub(super) async fn findings(asked: &Asked<'_>, pending_is_broken: bool) -> Result<Vec<Finding>, Fault> {
    let (table, pending) = (asked.table.quoted(), asked.table.pending_index_name());
    let rows = asked.rows(DOING, READ, &[(&table, Type::TEXT), (&pending, Type::TEXT)]).await?;
    let mut findings = Vec::new();
    for row in &rows {
        let (name, valid, scans, needed): (&str, bool, i64, bool) =
            (row.get(0), row.get(1), row.get(2), row.get(3));
        let (worked, bytes): (i64, i64) = (row.get(4), row.get(5));
        let remedy = format!("DROP INDEX CONCURRENTLY {name};");
        let place = asked.table.to_string();
        if !valid && !pending_is_broken {
            let problem = format!("the index {name} is invalid");
            findings.push(INDEX_INVALID.found(place, problem, remedy));
        } else if valid && !needed && scans == 0 && worked >= ROWS_MIN {
            let problem = format!("the index {name} ({bytes} bytes) was never used");
            findings.push(INDEX_UNUSED.found(place, problem, remedy));
        }
    }
    Ok(findings)
}
