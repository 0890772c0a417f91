//! Writes configurations: the example, the first file of `init`, and the one in force for the status page.

pub(crate) mod draft;
pub(crate) mod example;
pub(crate) mod shown;
