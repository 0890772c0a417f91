//! sqlx. The supported versions have the same source, which is compiled once for each: `version_08.rs` and `version_09.rs` name
//! the crate that the other files of this folder use, and contain what differs.

#[cfg(feature = "sqlx-08")]
pub mod version_08;
#[cfg(feature = "sqlx-09")]
pub mod version_09;
