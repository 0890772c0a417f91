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
    /// The lowest version of the relay that can run on a schema with this migration.
    pub min_relay: &'static str,
}

/// The migrations of the outbox, in order. Never edit a released file: add another one.
pub const MIGRATIONS: [Migration; 7] = [
    migration(1, "outbox", include_str!("../../../../../sql/0001_outbox.sql")),
    migration(2, "setting", include_str!("../../../../../sql/0002_setting.sql")),
    migration(3, "wait", include_str!("../../../../../sql/0003_wait.sql")),
    migration(4, "audit", include_str!("../../../../../sql/0004_audit.sql")),
    migration(5, "identity", include_str!("../../../../../sql/0005_identity.sql")),
    migration(6, "no_wait", include_str!("../../../../../sql/0006_no_wait.sql")),
    migration(7, "privileges", include_str!("../../../../../sql/0007_privileges.sql")),
];

/// The migrations of the optional modules.
pub(super) const INBOX: [Migration; 2] = [
    migration(1, "inbox", include_str!("../../../../../sql/inbox/0001_inbox.sql")),
    migration(2, "owner", include_str!("../../../../../sql/inbox/0002_owner.sql")),
];
pub(super) const IDEMPOTENCY: [Migration; 2] = [
    migration(1, "idempotency", include_str!("../../../../../sql/idempotency/0001_idempotency.sql")),
    migration(2, "owner", include_str!("../../../../../sql/idempotency/0002_owner.sql")),
];
pub(super) const ONCE: [Migration; 2] = [
    migration(1, "once", include_str!("../../../../../sql/once/0001_once.sql")),
    migration(2, "owner", include_str!("../../../../../sql/once/0002_owner.sql")),
];

/// A migration on which relays of every version can run.
///
/// If that does not hold, `min_relay` is the version that adds the migration. Then neither a running older relay nor a rollback
/// works: prefer two migrations, of which a later version applies the second one.
const fn migration(number: i32, name: &'static str, template: &'static str) -> Migration {
    Migration { number, name, template, min_relay: "0.1.0" }
}

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
    use crate::schema::migrate::version::Version;
    use crate::schema::migrate::{Module, Series};
    use crate::table::unknown_placeholders;
    use std::path::{Path, PathBuf};

    fn folder(series: &Series) -> PathBuf {
        let sql = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../sql");
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
        let has_migrations = |folder: &Path| {
            let mut files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().file_name());
            files.any(|name| name.to_string_lossy().starts_with("0001_"))
        };
        let folders = std::fs::read_dir(folder(&Series::Outbox)).unwrap().map(|entry| entry.unwrap().path());
        assert_eq!(
            folders.filter(|path| path.is_dir() && has_migrations(path)).count(),
            Module::ALL.len(),
            "each module has a folder, each folder with migrations a module"
        );
    }

    #[test]
    fn this_version_can_run_on_every_migration() {
        for migration in every_series().flat_map(Series::migrations) {
            let min_relay: Version = migration.min_relay.parse().unwrap();
            assert!(min_relay.is_met(), "{}", migration.file_name());
        }
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
