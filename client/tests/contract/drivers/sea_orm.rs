//! sea-orm, whose versions share `connection.rs`.

#[cfg(feature = "sea-orm-1")]
pub mod version_1;
#[cfg(feature = "sea-orm-2")]
pub mod version_2;
