//! sea-orm, whose versions share `connection.rs`.

#[cfg(feature = "sea-orm-1")]
mod version_1;
#[cfg(feature = "sea-orm-2")]
mod version_2;
