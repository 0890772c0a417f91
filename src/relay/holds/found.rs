//! The results of probes.

use crate::relay::failure::Failure;

/// The results of probes by topic.
#[derive(Default)]
pub(crate) struct Found {
    /// Topics that accept records.
    pub(crate) works: Vec<String>,
    /// Topics that do not.
    pub(crate) fails: Vec<(String, Failure)>,
    /// Topics whose row was not sent, for example because another claim has it.
    pub(crate) unknown: Vec<String>,
}

impl Found {
    pub(crate) fn knows(&self, topic: &String) -> bool {
        self.works.contains(topic)
            || self.unknown.contains(topic)
            || self.fails.iter().any(|(failed, _)| failed == topic)
    }
}
