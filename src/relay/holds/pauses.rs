//! What operators have paused, as the log and the metrics tell it. What a claim reads does not depend on this: its own
//! statement asks.

use crate::relay::health::episodes::Episodes;

/// No more pauses than this are named in the log.
pub const PAUSES_NAMED_MAX: usize = 100;

/// How many pauses there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Of everything.
    pub everything: i64,
    /// Of a topic.
    pub topics: i64,
    /// Of a key.
    pub keys: i64,
}

impl Counts {
    /// All of them.
    pub fn total(self) -> i64 {
        self.everything + self.topics + self.keys
    }
}

/// One pause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pause {
    /// Its number.
    pub id: i64,
    /// Whose events wait.
    pub paused: Paused,
    /// In the words of the operator.
    pub reason: Option<String>,
}

/// Whose events wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Paused {
    /// Those of all.
    Everything,
    /// Those of this topic.
    Topic(String),
    /// Those of one key of this aggregate type. Which one, the log does not tell: keys can name people.
    KeyOf(String),
}

/// The pauses that were reported.
#[derive(Debug, Default)]
pub(crate) struct ReportedPauses {
    /// The set of holds that they belong to; nothing has changed while it is the same.
    hold_version: Option<i64>,
    /// By number and name.
    pauses: Episodes<(i64, String)>,
}

impl ReportedPauses {
    /// Whether they belong to another set of holds than this.
    pub(crate) fn is_older_than(&self, hold_version: i64) -> bool {
        self.hold_version != Some(hold_version)
    }

    /// These are the pauses now: reports which began and which ended.
    pub(crate) fn update(&mut self, hold_version: i64, pauses: &[Pause]) {
        self.hold_version = Some(hold_version);
        for (pause, of) in self.ended(pauses) {
            tracing::info!(pause, of, "resumed {of}");
        }
        for begun in self.begun(pauses) {
            let (pause, of) = (begun.id, begun.paused.name());
            let reason = begun.reason.as_deref().unwrap_or("no reason given");
            let others = if begun.paused == Paused::Everything { "" } else { ", other events continue" };
            tracing::warn!(
                pause,
                of,
                reason,
                "paused {of} ({reason}){others}. To resume, run `outbox-relay resume`. To list all pauses, run \
                 `outbox-relay status`"
            );
        }
    }

    fn ended(&mut self, pauses: &[Pause]) -> Vec<(i64, String)> {
        let ended = self.pauses.end(|(id, _), _| pauses.iter().all(|pause| pause.id != *id));
        ended.into_iter().map(|(pause, _)| pause).collect()
    }

    fn begun<'a>(&mut self, pauses: &'a [Pause]) -> Vec<&'a Pause> {
        pauses.iter().filter(|pause| self.pauses.begins((pause.id, pause.paused.name()))).collect()
    }
}

impl Paused {
    /// In a few words.
    pub fn name(&self) -> String {
        match self {
            Paused::Everything => "everything".to_owned(),
            Paused::Topic(topic) => format!("topic {topic}"),
            Paused::KeyOf(aggregate_type) => format!("a key of {aggregate_type}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pauses_that_began_or_ended_are_reported() {
        let pause = |id| Pause { id, paused: Paused::Everything, reason: None };
        let mut reported = ReportedPauses::default();
        reported.update(1, &[pause(1), pause(2)]);
        let after = [pause(2), pause(3)];
        assert_eq!(reported.ended(&after), [(1, "everything".to_owned())]);
        assert_eq!(reported.begun(&after), [&after[1]]);
    }
}
