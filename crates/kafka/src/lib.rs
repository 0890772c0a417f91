//! All use of Kafka: [`cluster`] opens producers, [`producer`] sends [records](record) and takes the reports of the brokers, and
//! [`errors`] maps errors to reasons.

#![warn(unreachable_pub)]
#![allow(rustdoc::private_intra_doc_links)] // the documentation is for people who work on the code

pub mod client;
pub mod cluster;
mod confirmation;
pub mod errors;
pub mod headers;
mod limits;
mod login;
#[cfg(feature = "aws")]
mod msk;
/// The Kafka side of the operator's commands: `doctor`, `init`, `replay` and `verify`.
pub mod operate {
    pub mod copy;
    pub mod doctor;
    pub mod reader;
    pub mod topics;
}
pub mod options;
pub mod producer;
pub mod record;
mod reports;
mod tls;
mod tokens;

/// Runs something that blocks, such as the end of a client, on another thread of the runtime; without a runtime, here.
pub(crate) fn elsewhere(blocks: impl FnOnce() + Send + 'static) {
    match tokio::runtime::Handle::try_current() {
        Ok(runtime) => _ = runtime.spawn_blocking(blocks),
        Err(_) => blocks(),
    }
}
