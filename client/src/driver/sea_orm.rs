//! sea-orm. The supported versions have the same source, which is compiled once for each: `version_1.rs` and `version_2.rs` name
//! the crate that the other files of this folder use, and contain what differs.

#[cfg(feature = "sea-orm-1")]
mod version_1;
#[cfg(feature = "sea-orm-2")]
mod version_2;
