//! The text of a migration, which depends on whether the outbox table existed before.

use super::list::Migration;
use super::series::Series;
use crate::table::TableName;

/// Where the outbox table comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The first migration creates it.
    Created,
    /// It existed before. Its columns can have other names.
    Adopted {
        /// The type of the payload of the function that inserts an event.
        payload_type: &'static str,
    },
}

/// The first migration begins with the outbox table and its index, and ends with the function that inserts an event.
const COMPANIONS: &str = "-- One row for each lane.";
const ENQUEUE: &str = "-- Inserts an event: SELECT";

/// An adopted table keeps its privileges, so migration 7 only begins here.
const NEXT_TO_IT: &str = "-- The tables next to it";

/// The statements of the first migration that name columns of the outbox.
const ADOPTED_ENQUEUE: &str = include_str!("adopted_enqueue.sql");

/// The procedure of migration 3 is dropped by migration 6, so new outboxes never get it.
const SUPERSEDED: &str = "-- Superseded by migration 6.\n";

impl Origin {
    /// The origin of a table that is configured like this. Only an existing table can have renamed columns.
    pub(crate) fn of(table: &TableName) -> Origin {
        if table.columns().are_standard() {
            Origin::Created
        } else {
            Origin::Adopted { payload_type: "json" }
        }
    }

    /// The statements of a migration.
    pub(super) fn sql(self, series: Series, migration: &Migration, table: &TableName) -> String {
        match (series, self) {
            (Series::Outbox, Origin::Adopted { payload_type }) => {
                table.render(&template(migration).replace("{payload_type}", payload_type))
            }
            (Series::Outbox, Origin::Created) if migration.number == 3 => SUPERSEDED.to_owned(),
            _ => table.render(migration.template),
        }
    }
}

/// The text of a migration of an adopted outbox, with placeholders.
fn template(migration: &Migration) -> String {
    match migration.number {
        1 => companions(migration.template).to_owned() + ADOPTED_ENQUEUE,
        3 => SUPERSEDED.to_owned(),
        7 => migration.template[migration.template.find(NEXT_TO_IT).unwrap_or(0)..].to_owned(),
        _ => migration.template.to_owned(),
    }
}

/// The part that creates the other tables.
fn companions(first: &str) -> &str {
    let from = first.find(COMPANIONS).unwrap_or(0);
    let to = first.find(ENQUEUE).unwrap_or(first.len());
    &first[from..to]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::migrate::MIGRATIONS;
    use crate::table::unknown_placeholders;

    #[test]
    fn adopted_outbox_with_standard_names_gets_the_same_statements_except_for_the_table() {
        let table: TableName = "app.outbox".parse().unwrap();
        let adopted = Origin::Adopted { payload_type: "json" };
        for migration in &MIGRATIONS {
            let created = Origin::Created.sql(Series::Outbox, migration, &table);
            let sql = adopted.sql(Series::Outbox, migration, &table);
            let Some(omitted) = created.strip_suffix(&sql) else {
                panic!("{}:\n{sql}\nis not the end of\n{created}", migration.file_name())
            };
            let statements = ["CREATE TABLE \"app\".\"outbox\" (", "CREATE INDEX \"outbox_pending\" ON"];
            let first = migration.number == 1;
            assert_eq!(omitted.matches("\nCREATE ").count(), if first { 2 } else { 0 }, "{omitted}");
            assert!(!first || statements.iter().all(|statement| omitted.contains(statement)), "{omitted}");
        }
    }

    /// Whether the statement that begins here names a column of the alias `o` that could be renamed.
    fn has_standard_column(statement: &str) -> bool {
        let statement = statement.split(';').next().unwrap_or(statement);
        statement
            .match_indices(" o.")
            .any(|(at, _)| !statement[at + 3..].starts_with('{') && !statement[at + 3..].starts_with("xmin"))
    }

    /// A later migration that names columns of the outbox needs a text for renamed columns.
    #[test]
    fn only_listed_statements_name_columns_of_the_outbox() {
        for migration in &MIGRATIONS {
            let template = template(migration).replace("{payload_type}", "json");
            assert_eq!(unknown_placeholders(&template), [""; 0], "{}", migration.file_name());
            for (before, _) in template.match_indices("{outbox}") {
                let rest = &template[before..];
                let known = rest.starts_with("{outbox} ({aggregate_type_column}, ")
                    || rest.starts_with("{outbox} AS o") && !has_standard_column(rest);
                assert!(known, "{}: {}", migration.file_name(), &rest[..rest.len().min(60)]);
            }
        }
    }
}
