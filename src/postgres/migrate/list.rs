//! The migrations that this version carries.

use openssl::sha::sha256;

/// One numbered file of `sql/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Migration {
    /// Its number, from 1 without gaps.
    pub number: i32,
    /// What it is about.
    pub name: &'static str,
    /// Its text, with placeholders for the names.
    pub template: &'static str,
}

/// Every migration, in order. A file that was released is never edited: add another one.
pub const MIGRATIONS: [Migration; 1] =
    [Migration { number: 1, name: "outbox", template: include_str!("../../../sql/0001_outbox.sql") }];

impl Migration {
    /// The sha256 of the text, before the names are filled in: it does not depend on the table's name.
    pub fn checksum(&self) -> String {
        sha256(self.template.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Its file in `sql/`.
    pub fn file_name(&self) -> String {
        format!("{:04}_{}.sql", self.number, self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::postgres::table::unknown_placeholders;

    #[test]
    fn every_file_in_sql_is_in_the_list_in_order_without_gaps() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/sql");
        let mut files: Vec<String> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        files.sort();
        let listed: Vec<String> = MIGRATIONS.iter().map(Migration::file_name).collect();
        assert_eq!(files, listed);
        let numbers: Vec<i32> = MIGRATIONS.iter().map(|migration| migration.number).collect();
        assert_eq!(numbers, (1..).take(MIGRATIONS.len()).collect::<Vec<_>>());
    }

    #[test]
    fn every_placeholder_in_sql_is_known() {
        for migration in MIGRATIONS {
            assert_eq!(unknown_placeholders(migration.template), [""; 0], "{}", migration.file_name());
        }
        assert_eq!(unknown_placeholders(include_str!("bookkeeping.sql")), [""; 0]);
    }
}
