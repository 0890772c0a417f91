//! What operators have paused, as the log and the metrics tell it. What a claim reads does not depend on this: its own
//! statement asks.

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

/// The pauses that were told of last.
#[derive(Debug, Default)]
pub struct Told {
    /// Of which set of holds; nothing has changed while it is the same.
    hold_version: Option<i64>,
    pauses: Vec<Pause>,
}

impl Told {
    /// Whether another set of holds than this was told of.
    pub fn is_older_than(&self, hold_version: i64) -> bool {
        self.hold_version != Some(hold_version)
    }

    /// Says which pauses began and which ended.
    pub fn tell(&mut self, hold_version: i64, pauses: Vec<Pause>) {
        for ended in without(&self.pauses, &pauses) {
            let (pause, of) = (ended.id, ended.paused.name());
            tracing::info!(pause, of, "resumed {of}: the events that waited flow again, in order");
        }
        for begun in without(&pauses, &self.pauses) {
            let (pause, of) = (begun.id, begun.paused.name());
            let reason = begun.reason.as_deref().unwrap_or("no reason was given");
            let others = if begun.paused == Paused::Everything { "" } else { ", all else flows" };
            tracing::warn!(
                pause,
                of,
                reason,
                "an operator has paused {of} ({reason}): nothing more of it is claimed{others}. What to do: when the reason \
                 is gone, `outbox-relay resume`; `outbox-relay status` shows what is paused"
            );
        }
        *self = Told { hold_version: Some(hold_version), pauses };
    }
}

/// Those of `pauses` that are not among `others`.
fn without<'a>(pauses: &'a [Pause], others: &[Pause]) -> impl Iterator<Item = &'a Pause> {
    pauses.iter().filter(|pause| others.iter().all(|other| other.id != pause.id))
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
    fn what_began_and_what_ended_is_told_apart() {
        let pause = |id| Pause { id, paused: Paused::Everything, reason: None };
        let (before, after) = ([pause(1), pause(2)], [pause(2), pause(3)]);
        assert_eq!(without(&before, &after).map(|pause| pause.id).collect::<Vec<_>>(), [1]);
        assert_eq!(without(&after, &before).map(|pause| pause.id).collect::<Vec<_>>(), [3]);
    }
}
