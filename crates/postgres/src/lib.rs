//! All SQL of the daemon.
//!
//! Start with [`cycle::claim`] and `cycle::settle`, the two halves of a cycle, and [`cycle::statements`], their text in `sql/relay/`.

#![warn(unreachable_pub)]
#![allow(rustdoc::private_intra_doc_links)] // the documentation is for people who work on the code

/// Reads a struct from a row that has its fields in this order, some of which a function converts.
macro_rules! from_row {
    ($type:ident: $($field:ident $(as $convert:ident)?),+) => {
        impl From<&tokio_postgres::Row> for $type {
            fn from(row: &tokio_postgres::Row) -> $type {
                let mut columns = 0_usize..;
                $(
                    let $field = row.get(columns.next().unwrap_or_default());
                    $(let $field = $convert($field);)?
                )+
                $type { $($field),+ }
            }
        }
    };
}

/// Parameters with their types, such as `params![lanes => INT2_ARRAY]`.
macro_rules! params {
    ($($value:expr => $type:ident),+ $(,)?) => {
        [$((&$value as &(dyn tokio_postgres::types::ToSql + Sync), tokio_postgres::types::Type::$type)),+]
    };
}

/// Whether a name is one of these, which are separated by spaces.
fn is_in(names: &str, name: &str) -> bool {
    names.split(' ').any(|known| known == name)
}

pub mod columns;
pub mod options;
mod sql;
pub mod table;

/// The privileges that the relay and each command need, and the roles as SQL.
pub mod access {
    pub mod grants;
    pub mod roles;
}

/// Connections, transactions, and errors of the server.
pub mod connection {
    pub(crate) mod dial;
    pub mod errors;
    pub mod exec;
    pub mod password_command;
    pub mod pool;
    pub mod sqlstates;
    pub mod tls;
}

/// The database side of a running relay: claims and settlements, the scout, the probes of held topics, the reaper.
pub mod cycle {
    pub mod claim;
    pub mod holds;
    pub mod measurements;
    pub(crate) mod read;
    pub mod reap;
    pub mod row;
    pub mod scout;
    pub(crate) mod settle;
    pub mod statements;
}

/// The queries of `status` and `doctor`.
pub mod diagnose {
    pub mod doctor;
    pub mod status;
}

/// Operator actions on rejected events, pauses and sent events, and their history.
pub mod operate {
    pub mod pauses;
    pub mod rejected;
    pub mod sent;
}

/// Migrations, the adoption of existing tables, the checks before the relay starts, and the settings that it records.
pub mod schema {
    pub mod adopt;
    pub mod check;
    pub mod errors;
    pub mod identity;
    pub mod migrate;
    pub mod outbox;
    pub(crate) mod relations;
    pub mod series;
}
