//! What the database reports to `status` and `doctor`.

pub mod doctor;
pub mod holders;
pub mod status;
