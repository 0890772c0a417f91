//! What a setting is: its value, its place in the file and the environment, what is wrong with it, and secrets. Each crate
//! declares its own settings with [`section!`]. This crate knows none of them.

#![warn(unreachable_pub)]
#![allow(rustdoc::private_intra_doc_links)] // the documentation is for people who work on the code

pub mod certificates;
pub mod doctor;
pub mod file;
pub mod findings;
pub mod reader;
pub mod secret;
pub mod setting;
pub mod text;
