//! The results of probes.

use crate::relay::failure::Failure;

/// The results of probes by topic.
#[derive(Default)]
pub(crate) struct Found {
    /// Topics that accept records.
    pub(crate) works: Vec<String>,
    /// Topics that do not.
    pub(crate) fails: Vec<(String, Failure)>,
    /// Topics without a result, for example because another relay has locked the lane.
    pub(crate) unknown: Vec<String>,
}

impl Found {
    pub(crate) fn knows(&self, topic: &String) -> bool {
        self.works.contains(topic)
            || self.unknown.contains(topic)
            || self.fails.iter().any(|(failed, _)| failed == topic)
    }
}
