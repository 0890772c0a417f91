//! The queries of `status` and `doctor`.

pub(crate) mod doctor;
pub(crate) mod holders;
pub(crate) mod status;
