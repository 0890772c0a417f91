//! Finds triggers and constraints that may suppress or reject the relay's updates and deletes. The checks at start find rules.

use super::Context;
use crate::options::OnSent;
use crate::table::Column;
use relay::failure::PostgresFault;
use settings::doctor::Finding;
use settings::doctor::codes::{OUTBOX_CONSTRAINT, OUTBOX_TRIGGER};
use tokio_postgres::types::Type;

/// Triggers that fire before the update of `sent_at`, or before a delete, for each row. PostgreSQL manual, "Overview of Trigger
/// Behavior": one that returns NULL skips the row, and one that returns OLD
/// changes nothing. In `tgtype`, 1 is FOR EACH ROW, 2 is BEFORE, 8 is DELETE, 16 is UPDATE.
const READ: &str = "
SELECT quote_ident(t.tgname)
FROM pg_trigger AS t
JOIN pg_attribute AS a ON a.attrelid = t.tgrelid AND a.attname = $2::text
WHERE t.tgrelid = $1::text::regclass AND NOT t.tgisinternal AND t.tgenabled IN ('O', 'A') AND t.tgtype & 3 = 3
  AND (t.tgtype & 8 > 0 OR t.tgtype & 16 > 0 AND (cardinality(t.tgattr::int2[]) = 0 OR a.attnum = ANY (t.tgattr::int2[])))
ORDER BY 1";

/// Checks of `sent_at`, and foreign keys that refer to the table and reject the deletion of a row: NO ACTION and RESTRICT. A foreign
/// key of a partition has the one of its parent as `conparentid` (PostgreSQL manual, "pg_constraint").
const CONSTRAINTS: &str = "
SELECT quote_ident(c.conname), c.conrelid::regclass::text, c.contype = 'f'
FROM pg_constraint AS c
LEFT JOIN pg_attribute AS a ON a.attrelid = c.conrelid AND a.attname = $2::text
WHERE c.contype = 'c' AND c.conrelid = $1::text::regclass AND a.attnum = ANY (c.conkey)
   OR c.contype = 'f' AND c.confrelid = $1::text::regclass AND c.conparentid = 0 AND c.confdeltype IN ('a', 'r')
ORDER BY 1, 2";

pub(super) async fn constraints(context: &Context<'_>) -> Result<Vec<Finding>, PostgresFault> {
    let (table, sent_at) = (context.table.quoted(), context.table.columns().name(Column::SentAt));
    let params = &[(&table as _, Type::TEXT), (&sent_at as _, Type::TEXT)];
    let rows = context.rows("reading the constraints", CONSTRAINTS, params).await?;
    let marks = context.settings.on_sent == OnSent::Mark;
    let finding = |row: &tokio_postgres::Row| {
        let (name, on, is_foreign_key): (&str, &str, bool) = (row.get(0), row.get(1), row.get(2));
        let (problem, keep) = if is_foreign_key {
            (
                format!("the foreign key {name} of {on} rejects the deletion of events to which rows refer"),
                "or create it again with ON DELETE CASCADE or ON DELETE SET NULL",
            )
        } else {
            (
                format!("the constraint {name} checks {sent_at}, and can prevent the relay from setting it"),
                "or keep it if it accepts any time for every row",
            )
        };
        let remedy = format!("ALTER TABLE {on} DROP CONSTRAINT {name}; {keep}");
        OUTBOX_CONSTRAINT.found(context.table.to_string(), problem, remedy)
    };
    Ok(rows.iter().filter(|row| marks || row.get::<_, bool>(2)).map(finding).collect())
}

pub(super) async fn findings(context: &Context<'_>) -> Result<Vec<Finding>, PostgresFault> {
    let (table, sent_at) = (context.table.quoted(), context.table.columns().name(Column::SentAt));
    let params = &[(&table as _, Type::TEXT), (&sent_at as _, Type::TEXT)];
    let rows = context.rows("reading the triggers", READ, params).await?;
    let finding = |row: &tokio_postgres::Row| {
        let name: &str = row.get(0);
        let problem = format!(
            "the trigger {name} runs before the relay's updates or deletes, and can suppress or undo them"
        );
        let remedy = format!(
            "check that it never returns NULL or OLD and keeps sent_at, or limit it to columns that the relay does not change: BEFORE UPDATE OF column. \
             To drop it: DROP TRIGGER {name} ON {table};"
        );
        OUTBOX_TRIGGER.found(context.table.to_string(), problem, remedy)
    };
    Ok(rows.iter().map(finding).collect())
}
