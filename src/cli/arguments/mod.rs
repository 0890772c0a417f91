//! Arguments that several commands have.

pub(crate) mod moment;
pub(crate) mod selection;
