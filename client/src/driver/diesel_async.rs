//! diesel-async. The supported versions have the same source, which is compiled once for each: the modules name the crate that
//! the other files of this folder use. All of them use the same version of diesel.

#[cfg(feature = "diesel-async-07")]
mod version_07;
#[cfg(feature = "diesel-async-08")]
mod version_08;
#[cfg(feature = "diesel-async-09")]
mod version_09;
