//! The queries of `status` and `doctor`.

pub mod doctor;
pub(crate) mod holders;
pub mod status;
