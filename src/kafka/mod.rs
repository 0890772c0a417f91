//! kafka

pub mod properties;
