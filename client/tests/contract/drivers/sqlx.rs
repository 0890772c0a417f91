//! sqlx, whose versions share `connection.rs`.

#[cfg(feature = "sqlx-08")]
pub mod version_08;
#[cfg(feature = "sqlx-09")]
pub mod version_09;
