//! diesel-async. The versions share the other files of this folder.

#[cfg(feature = "diesel-async-07")]
mod version_07;
#[cfg(feature = "diesel-async-08")]
mod version_08;
#[cfg(feature = "diesel-async-09")]
mod version_09;
