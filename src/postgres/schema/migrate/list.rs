//! The migrations of this version.

use openssl::sha::sha256;

/// One numbered file of `sql/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Migration {
    /// Its number, from 1 without gaps.
    pub number: i32,
    /// Its name.
    pub name: &'static str,
    /// Its text, with placeholders for the names.
    pub template: &'static str,
}

/// The migrations of the outbox, in order. Never edit a released file: add another one.
pub const MIGRATIONS: [Migration; 4] = [
    Migration { number: 1, name: "outbox", template: include_str!("../../../../sql/0001_outbox.sql") },
    Migration { number: 2, name: "setting", template: include_str!("../../../../sql/0002_setting.sql") },
    Migration { number: 3, name: "wait", template: include_str!("../../../../sql/0003_wait.sql") },
    Migration { number: 4, name: "audit", template: include_str!("../../../../sql/0004_audit.sql") },
];

/// The migrations of the optional modules.
pub(super) const INBOX: [Migration; 2] = [
    Migration { number: 1, name: "inbox", template: include_str!("../../../../sql/inbox/0001_inbox.sql") },
    Migration { number: 2, name: "owner", template: include_str!("../../../../sql/inbox/0002_owner.sql") },
];
pub(super) const IDEMPOTENCY: [Migration; 2] = [
    Migration {
        number: 1,
        name: "idempotency",
        template: include_str!("../../../../sql/idempotency/0001_idempotency.sql"),
    },
    Migration {
        number: 2,
        name: "owner",
        template: include_str!("../../../../sql/idempotency/0002_owner.sql"),
    },
];
pub(super) const ONCE: [Migration; 2] = [
    Migration { number: 1, name: "once", template: include_str!("../../../../sql/once/0001_once.sql") },
    Migration { number: 2, name: "owner", template: include_str!("../../../../sql/once/0002_owner.sql") },
];

impl Migration {
    /// The SHA-256 of the text with placeholders, so that it does not depend on the table's name.
    pub fn checksum(&self) -> String {
        sha256(self.template.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The file name in `sql/` or in the module's folder.
    pub(crate) fn file_name(&self) -> String {
        format!("{:04}_{}.sql", self.number, self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::postgres::schema::migrate::{Module, Series};
    use crate::postgres::table::unknown_placeholders;
    use std::path::{Path, PathBuf};

    fn folder(series: &Series) -> PathBuf {
        let sql = Path::new(env!("CARGO_MANIFEST_DIR")).join("sql");
        series.module().map_or(sql.clone(), |module| sql.join(module.name()))
    }

    fn every_series() -> impl Iterator<Item = Series> {
        [Series::Outbox].into_iter().chain(Module::ALL.map(Series::Module))
    }

    #[test]
    fn every_file_in_sql_is_listed_in_order_without_gaps() {
        for series in every_series() {
            let mut files: Vec<String> = std::fs::read_dir(folder(&series))
                .unwrap()
                .map(Result::unwrap)
                .filter(|entry| entry.file_type().unwrap().is_file())
                .map(|entry| entry.file_name().into_string().unwrap())
                .collect();
            files.sort();
            let listed: Vec<String> = series.migrations().iter().map(Migration::file_name).collect();
            assert_eq!(files, listed);
            let numbers: Vec<i32> = series.migrations().iter().map(|migration| migration.number).collect();
            assert_eq!(numbers, (1..).take(numbers.len()).collect::<Vec<_>>());
        }
        let folders = std::fs::read_dir(folder(&Series::Outbox)).unwrap().map(Result::unwrap);
        assert_eq!(
            folders.filter(|entry| entry.file_type().unwrap().is_dir()).count(),
            Module::ALL.len(),
            "each module has a folder, each folder a module"
        );
    }

    #[test]
    fn every_placeholder_in_sql_is_known() {
        for series in every_series() {
            for migration in series.migrations() {
                assert_eq!(unknown_placeholders(migration.template), [""; 0], "{}", migration.file_name());
            }
            assert_eq!(unknown_placeholders(series.bookkeeping()), [""; 0]);
        }
    }
}
