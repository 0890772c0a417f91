//! Reads the file and the environment: finds the values, checks them, and reports all problems.

pub(crate) mod entries;
pub(crate) mod lines;
pub(crate) mod nearest;
pub(crate) mod reader;
pub(crate) mod values;
