//! Pauses for the log and the metrics. Claims do not use this; their own statement checks for pauses.

use crate::health::episodes::Episodes;

pub const PAUSES_NAMED_MAX: usize = 100;

/// The number of pauses by scope.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Pauses of everything.
    pub everything: i64,
    /// Pauses of a topic.
    pub topics: i64,
    /// Pauses of a key.
    pub keys: i64,
}

impl Counts {
    pub fn total(self) -> i64 {
        self.everything + self.topics + self.keys
    }
}

/// One pause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pause {
    /// The id.
    pub id: i64,
    /// The scope.
    pub scope: PauseScope,
    /// The operator's reason.
    pub reason: Option<String>,
}

/// The scope of a pause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PauseScope {
    /// All events.
    Everything,
    /// The events of this topic.
    Topic(String),
    /// The events of one key of this aggregate type. The log does not show the key, which may be personal data.
    KeyOf(String),
}

/// The pauses that were reported.
#[derive(Debug, Default)]
pub(crate) struct ReportedPauses {
    /// The set of holds that they belong to. As long as it is the same, the pauses are too.
    hold_version: Option<i64>,
    /// By id and scope.
    pauses: Episodes<(i64, String)>,
}

impl ReportedPauses {
    /// Whether they belong to a set of holds other than this one.
    pub(crate) fn is_older_than(&self, hold_version: i64) -> bool {
        self.hold_version != Some(hold_version)
    }

    /// Reports which pauses have begun and ended, given the current ones.
    pub(crate) fn update(&mut self, hold_version: i64, pauses: &[Pause]) {
        self.hold_version = Some(hold_version);
        for (pause, scope) in self.ended(pauses) {
            tracing::info!(code = "resumed", pause, scope, "resumed {scope}");
        }
        for begun in self.begun(pauses) {
            let (pause, scope) = (begun.id, begun.scope.name());
            let reason = begun.reason.as_deref().unwrap_or("no reason given");
            let others = if begun.scope == PauseScope::Everything { "" } else { "; other events continue" };
            tracing::warn!(
                code = "paused",
                pause,
                scope,
                reason,
                "paused {scope} ({reason}){others}. To resume, run `outbox-relay resume` with the same scope. To list \
                 all pauses, run `outbox-relay status`"
            );
        }
    }

    fn ended(&mut self, pauses: &[Pause]) -> Vec<(i64, String)> {
        let ended = self.pauses.end(|(id, _), _| pauses.iter().all(|pause| pause.id != *id));
        ended.into_iter().map(|(pause, _)| pause).collect()
    }

    fn begun<'a>(&mut self, pauses: &'a [Pause]) -> Vec<&'a Pause> {
        pauses.iter().filter(|pause| self.pauses.begins((pause.id, pause.scope.name()))).collect()
    }
}

impl PauseScope {
    pub(crate) fn name(&self) -> String {
        match self {
            PauseScope::Everything => "everything".to_owned(),
            PauseScope::Topic(topic) => format!("topic {topic}"),
            PauseScope::KeyOf(aggregate_type) => format!("a key of {aggregate_type}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pauses_that_began_or_ended_are_reported() {
        let pause = |id| Pause { id, scope: PauseScope::Everything, reason: None };
        let mut reported = ReportedPauses::default();
        reported.update(1, &[pause(1), pause(2)]);
        let after = [pause(2), pause(3)];
        assert_eq!(reported.ended(&after), [(1, "everything".to_owned())]);
        assert_eq!(reported.begun(&after), [&after[1]]);
    }
}
