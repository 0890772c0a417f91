//! What the database reports to `status` and `doctor`.

pub(crate) mod doctor;
pub(crate) mod holders;
pub(crate) mod status;
