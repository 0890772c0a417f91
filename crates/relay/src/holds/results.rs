//! The results of probes.

use crate::failure::Failure;

/// The results of probes by topic.
#[derive(Default)]
pub(crate) struct ProbeResults {
    /// Topics that accept records.
    pub(crate) works: Vec<String>,
    /// Topics that do not.
    pub(crate) fails: Vec<(String, Failure)>,
    /// Topics without a result, for example because another relay has locked the lane.
    pub(crate) unknown: Vec<String>,
}

impl ProbeResults {
    /// Records that Kafka has acknowledged a row of this topic. The hold ends only once the row is recorded as sent.
    pub(crate) fn acknowledged(&mut self, topic: String, is_recorded: bool) {
        if is_recorded { self.works.push(topic) } else { self.unknown.push(topic) }
    }

    pub(crate) fn knows(&self, topic: &String) -> bool {
        self.works.contains(topic)
            || self.unknown.contains(topic)
            || self.fails.iter().any(|(failed, _)| failed == topic)
    }
}
