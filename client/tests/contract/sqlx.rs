//! sqlx, through its transactions and through the connections of transactions. The versions share the other files of this folder.

#[cfg(feature = "sqlx-08")]
mod version_08;
#[cfg(feature = "sqlx-09")]
mod version_09;
