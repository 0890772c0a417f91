//! What probes found out.

use crate::relay::failure::Failure;

/// What probes found out, topic by topic.
#[derive(Default)]
pub(crate) struct Found {
    /// Their rows may be published.
    pub(crate) works: Vec<String>,
    /// They may not.
    pub(crate) fails: Vec<(String, Failure)>,
    /// Another claim has the row, or it was not sent.
    pub(crate) unknown: Vec<String>,
}

impl Found {
    /// Something was found out about this topic.
    pub(crate) fn knows(&self, topic: &String) -> bool {
        self.works.contains(topic)
            || self.unknown.contains(topic)
            || self.fails.iter().any(|(failed, _)| failed == topic)
    }
}
