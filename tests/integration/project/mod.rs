//! Documentation, manual pages and other files match the code.

mod deployment;
mod docs;
mod error_codes_page;
mod fuzzing;
mod man_pages;
pub(crate) mod monitoring;
mod promises;
mod prose;
mod third_party;
mod workflows;
