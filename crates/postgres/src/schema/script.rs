//! The text of a migration, which depends on whether the outbox table existed before, and scripts for psql and other migration
//! tools.

use crate::access::roles::RelayRole;
use crate::connection::exec::FIXED_SEARCH_PATH;
use crate::schema::series::{Migration, MigrationState, Module, Series, State};
use crate::sql::sql;
use crate::table::{TableName, fill, quote_identifier};

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
}

/// The migrations of a series, as a table of this origin needs them.
#[derive(Clone, Copy)]
pub(crate) struct Texts {
    pub(crate) series: Series,
    pub(crate) origin: Origin,
}

impl Texts {
    pub(crate) fn of(series: Series, table: &TableName) -> Texts {
        Texts { series, origin: Origin::of(table) }
    }

    /// The statements of a migration.
    pub(crate) fn sql(self, migration: &Migration, table: &TableName) -> String {
        match (self.series, self.origin, migration.number) {
            (Series::Outbox, _, 3) => SUPERSEDED.to_owned(),
            (Series::Outbox, Origin::Adopted { payload_type }, _) => {
                table.render(&adopted(migration).replace("{payload_type}", payload_type))
            }
            _ => table.render(migration.template),
        }
    }

    fn print(self, migration: &Migration, table: &TableName, sql: &mut String) {
        sql.push_str(&format!("\n-- {}\n\n", migration.file_name()));
        sql.push_str(&self.sql(migration, table));
        sql.push('\n');
        sql.push_str(&self.series.record_sql(table, migration));
    }
}

/// The text of a migration of an adopted outbox, with placeholders: without the statements that create the table, and with the names
/// of its columns. An adopted table keeps its privileges.
fn adopted(migration: &Migration) -> &'static str {
    match migration.number {
        1 => sql!("migrate/adopted_outbox"),
        7 => sql!("migrate/adopted_privileges"),
        _ => migration.template,
    }
}

const ADOPTED: &str = "
-- [outbox.columns] is set, so the table exists already, and the first migration does not create it. The columns and indexes
-- that it lacks are in the output of `outbox-relay migrate --adopt`.
";

/// The SQL of all migrations for `table` and of the table that records them, without BEGIN and COMMIT.
pub fn print(table: &TableName) -> String {
    print_series(table, Series::Outbox)
}

/// [`print()`], for a module in the schema of `table`.
pub fn print_module(table: &TableName, module: Module) -> String {
    print_series(table, Series::Module(module))
}

fn print_series(table: &TableName, series: Series) -> String {
    let header = match series {
        Series::Outbox => sql!("migrate/header").to_owned(),
        Series::Module(module) => sql!("migrate/module_header").replace("{module}", module.name()),
    };
    let mut sql = table.render(&header);
    sql.push('\n');
    sql.push_str(FIXED_SEARCH_PATH);
    sql.push_str(&table.render(series.bookkeeping()));
    let texts = Texts::of(series, table);
    if series == Series::Outbox && texts.origin != Origin::Created {
        sql.push_str(&table.render(ADOPTED));
    }
    series.migrations().iter().for_each(|migration| texts.print(migration, table, &mut sql));
    sql
}

/// The SQL of the pending migrations of the outbox, as `migrate` runs them; empty if there are none.
pub fn print_pending(table: &TableName, states: &[MigrationState]) -> String {
    print_adopted(table, states, Origin::of(table))
}

/// [`print_pending`], for a table of this origin.
pub fn print_adopted(table: &TableName, states: &[MigrationState], origin: Origin) -> String {
    let is_pending = |migration: &&Migration| {
        states.iter().any(|known| known.number == migration.number && known.state == State::Pending)
    };
    let mut sql = String::new();
    for migration in Series::Outbox.migrations().iter().filter(is_pending) {
        if sql.is_empty() {
            sql.push_str(&table.render(Series::Outbox.bookkeeping()));
        }
        Texts { series: Series::Outbox, origin }.print(migration, table, &mut sql);
    }
    sql
}

/// The transaction that replaces a table of Debezium's outbox event router with a view. Its last row is a marker.
pub fn debezium(from: &TableName, outbox: &TableName, role: &RelayRole) -> String {
    fill(sql!("migrate/debezium"), |placeholder| match placeholder {
        "from" => Some(from.to_string()),
        "before" => Some(from.display_derived("_before")),
        "before_with_schema" => Some(from.display_sibling(&format!("{}_before", from.table()))),
        "function" => Some(from.display_sibling(&format!("{}_to_outbox", from.table()))),
        "to" => Some(outbox.to_string()),
        "writer" => Some(match role.writer() {
            plain if plain.chars().all(|c| c.is_ascii_lowercase() || c == '_') => plain,
            other => quote_identifier(&other),
        }),
        _ => outbox.value_of(placeholder),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::series::MIGRATIONS;
    use crate::table::unknown_placeholders;

    #[test]
    fn adopted_outbox_with_standard_names_gets_the_same_statements_except_for_the_table() {
        let table: TableName = "app.outbox".parse().unwrap();
        let adopted = Origin::Adopted { payload_type: "json" };
        for migration in &MIGRATIONS {
            let [created, sql] = [Origin::Created, adopted]
                .map(|origin| Texts { series: Series::Outbox, origin }.sql(migration, &table));
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
            if migration.number == 3 {
                continue; // superseded
            }
            let template = adopted(migration).replace("{payload_type}", "json");
            assert_eq!(unknown_placeholders(&template), [""; 0], "{}", migration.file_name());
            for (before, _) in template.match_indices("{outbox}") {
                let rest = &template[before..];
                let known = rest.starts_with("{outbox} ({aggregate_type_column}, ")
                    || rest.starts_with("{outbox} AS o") && !has_standard_column(rest);
                assert!(known, "{}: {}", migration.file_name(), &rest[..rest.len().min(60)]);
            }
        }
    }

    #[test]
    fn names_are_quoted_only_where_sql_needs_it() {
        let outbox: TableName = "app.outbox".parse().unwrap();
        let sql = debezium(&"outboxevent".parse().unwrap(), &outbox, &"relay".parse().unwrap());
        assert!(
            !sql.contains('"') && sql.contains("INSERT INTO app.outbox (event_id, aggregate_type,"),
            "{sql}"
        );
        assert!(sql.contains("FROM public.outboxevent_before WHERE false"), "{sql}");
        let from: TableName = "\"My\".\"Out\"".parse().unwrap();
        let sql = debezium(&from, &outbox, &"my relay".parse().unwrap());
        assert!(sql.contains("ALTER TABLE \"My\".\"Out\" RENAME TO \"Out_before\";"), "{sql}");
        assert!(sql.contains("FUNCTION \"My\".\"Out_to_outbox\"()"), "{sql}");
        assert!(sql.contains("TO \"my relay_writer\";"), "{sql}");
    }
}
