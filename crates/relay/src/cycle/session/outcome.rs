//! The outcome of a batch by topic.

use super::{Destination, Session, TopicState};
use crate::event::Event;
use crate::outbox::TopicHold;
use crate::publisher::Producer;
use crate::reason::STUCK;
use crate::rows::Fate;
use crate::rows::batch::Batch;
use std::collections::HashSet;
use std::time::Duration;

/// Acknowledged rows of one topic.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub rows: u64,
    pub bytes: u64,
}

impl<P: Producer> Session<P> {
    /// The topics of the current batch to hold, with the reason and the first unsent row of each.
    pub(crate) fn held<'a, E: Event>(&'a self, batch: &'a Batch<E>) -> Vec<TopicHold<'a, E>> {
        let mut seen = vec![false; self.topics.len()];
        let mut held = Vec::new();
        if self.topics.iter().all(|topic| !matches!(topic.state, TopicState::Held(_))) {
            return held;
        }
        for (index, destination) in self.destinations.iter().enumerate() {
            let Some(destination) = destination else { continue };
            let topic = &self.topics[destination.topic as usize];
            let TopicState::Held(why) = &topic.state else { continue };
            let waits = batch.fate(index).is_undecided() || batch.fate(index) == Fate::Suspect;
            if waits && !std::mem::replace(&mut seen[destination.topic as usize], true) {
                held.push(TopicHold { topic: &topic.name, why, witness: &batch.rows()[index] });
            }
        }
        held
    }

    /// The partitions that have rows of this fate among the first `rows`.
    fn with<E: Event>(&self, fate: Fate, batch: &Batch<E>, rows: usize) -> HashSet<Destination> {
        let destinations = self.destinations.iter().enumerate().take(rows);
        destinations.filter(|(index, _)| batch.fate(*index) == fate).filter_map(|(_, place)| *place).collect()
    }

    /// Whether rows of a partition without rows in flight were acknowledged in this batch.
    pub(crate) fn others_work<E: Event>(&self, batch: &Batch<E>) -> bool {
        let acknowledged = self.with(Fate::Acknowledged, batch, batch.len());
        !acknowledged.is_subset(&self.with(Fate::InFlight, batch, batch.len()))
    }

    /// Called when none of the first `rows` was reported for `patience` although the cluster answers and other partitions
    /// work. Closes the session, holds the topics of the partitions in which some of these rows are in flight, and returns
    /// true. Rows that were not sent are ignored.
    pub(crate) fn hold_stuck<E: Event>(&mut self, batch: &Batch<E>, rows: usize, patience: Duration) -> bool {
        let mut silent = self.with(Fate::InFlight, batch, rows);
        silent.retain(|place| matches!(self.topics[place.topic as usize].state, TopicState::Open(_)));
        if self.failure.is_some() || silent.is_empty() {
            return false;
        }
        let waited = format!("{patience:.1?}");
        for destination in silent {
            let error = format!(
                "no record in partition {} was acknowledged for {waited}, although other partitions acknowledged \
                 records",
                destination.partition
            );
            self.hold(destination, STUCK.rejection(error));
        }
        let error = format!(
            "no records in some partitions were acknowledged for {waited}, although other partitions acknowledged \
             records"
        );
        self.close(STUCK.failure(error));
        true
    }

    /// Closes the session if every row in flight is in a topic that is held meanwhile. Its claim holds these topics too.
    pub(crate) fn close_if_held<E: Event>(
        &mut self,
        batch: &Batch<E>,
        is_held: impl Fn(&str) -> bool,
    ) -> bool {
        let silent = self.with(Fate::InFlight, batch, batch.len());
        let closes = !silent.is_empty() && silent.iter().all(|place| is_held(self.topic(*place)));
        if closes {
            const ERROR: &str = "another worker of this relay has held the topics of all records that were not acknowledged yet";
            silent.into_iter().for_each(|place| self.hold(place, STUCK.rejection(ERROR)));
            self.close(STUCK.failure(ERROR));
        }
        closes
    }

    /// Whether some row of the batch is known to stay unsent. A flow must then end, because a later row of its key could
    /// overtake it.
    pub(crate) fn leaves_rows<E: Event>(&self, batch: &Batch<E>) -> bool {
        self.failure.is_some()
            || self.topics.iter().any(|topic| matches!(topic.state, TopicState::Held(_)))
            || batch.has_refused()
    }

    /// The acknowledged rows of the current batch by topic.
    pub(crate) fn tally<E: Event>(&self, batch: &Batch<E>) -> impl Iterator<Item = (&str, Tally)> {
        let mut tallies = vec![Tally::default(); self.topics.len()];
        for (index, destination) in self.destinations.iter().enumerate() {
            if let (Some(destination), Fate::Acknowledged) = (destination, batch.fate(index)) {
                let tally = &mut tallies[destination.topic as usize];
                tally.rows += 1;
                tally.bytes += batch.rows()[index].size() as u64;
            }
        }
        let named = self.topics.iter().zip(tallies).map(|(topic, tally)| (topic.name.as_str(), tally));
        named.filter(|(_, tally)| tally.rows > 0)
    }
}
