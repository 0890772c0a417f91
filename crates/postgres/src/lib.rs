//! All SQL of the daemon.
//!
//! Start with [`cycle::claim`] and `cycle::settle`, the two halves of a cycle, and [`cycle::statements`], their text.

#![warn(unreachable_pub)]
#![allow(rustdoc::private_intra_doc_links)] // the documentation is for people who work on the code

/// Reads a struct from a row that has its fields in this order.
macro_rules! from_row {
    ($type:ident: $($field:ident),+) => {
        impl From<&tokio_postgres::Row> for $type {
            fn from(row: &tokio_postgres::Row) -> $type {
                let mut columns = 0_usize..;
                $(let $field = row.get(columns.next().unwrap_or_default());)+
                $type { $($field),+ }
            }
        }
    };
}

pub mod column_names;
mod columns;
pub mod connection;
pub mod cycle;
pub mod options;
pub mod payload;
pub mod schema;
mod sql;
pub mod table;
pub mod table_name;

/// The privileges that the relay and each command need, and the roles as SQL.
pub mod access {
    pub mod grants;
    pub mod roles;
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
