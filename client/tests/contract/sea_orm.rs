//! sea-orm. The versions share the other files of this folder.

#[cfg(feature = "sea-orm-1")]
mod version_1;
#[cfg(feature = "sea-orm-2")]
mod version_2;
