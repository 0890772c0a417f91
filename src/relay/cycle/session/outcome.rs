//! The outcome of a batch by topic.

use super::{Place, Session, State};
use crate::relay::event::Event;
use crate::relay::outbox::Held;
use crate::relay::publisher::Producer;
use crate::relay::reason::STUCK;
use crate::relay::rows::Fate;
use crate::relay::rows::batch::Batch;
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
    pub(crate) fn held<'a, E: Event>(&'a self, batch: &'a Batch<E>) -> Vec<Held<'a, E>> {
        let mut seen = vec![false; self.topics.len()];
        let mut held = Vec::new();
        if self.topics.iter().all(|topic| !matches!(topic.state, State::Held(_))) {
            return held;
        }
        for (index, place) in self.places.iter().enumerate() {
            let Some(place) = place else { continue };
            let topic = &self.topics[place.topic as usize];
            let State::Held(why) = &topic.state else { continue };
            let waits = batch.fate(index).is_undecided() || batch.fate(index) == Fate::Suspect;
            if waits && !std::mem::replace(&mut seen[place.topic as usize], true) {
                held.push(Held { topic: &topic.name, why, witness: &batch.rows()[index] });
            }
        }
        held
    }

    /// Called when no report has arrived for `patience` although the cluster answers. If rows of other partitions were
    /// acknowledged, in this batch or `elsewhere`, closes the session, holds the topics of the partitions with rows in flight,
    /// and returns true. Rows that were not sent are ignored.
    pub(crate) fn hold_stuck<E: Event>(
        &mut self,
        batch: &Batch<E>,
        elsewhere: bool,
        patience: Duration,
    ) -> bool {
        let mut silent: HashSet<Place> = HashSet::new();
        let mut acknowledged: HashSet<Place> = HashSet::new();
        for (index, place) in self.places.iter().enumerate() {
            let Some(place) = *place else { continue };
            let open = matches!(self.topics[place.topic as usize].state, State::Open(_));
            match batch.fate(index) {
                Fate::InFlight if open => _ = silent.insert(place),
                Fate::Acknowledged => _ = acknowledged.insert(place),
                _ => {}
            }
        }
        if self.failure.is_some() || silent.is_empty() || (!elsewhere && acknowledged.is_subset(&silent)) {
            return false;
        }
        let waited = humantime::format_duration(patience);
        for place in silent {
            let error = format!(
                "partition {} has not acknowledged a record for {waited}, while others have",
                place.partition
            );
            self.hold(place, STUCK.rejection(error));
        }
        let error = format!("some partitions have not acknowledged a record for {waited}, while others have");
        self.close(STUCK.failure(error));
        true
    }

    /// The topics and partitions with rows that have no report yet.
    pub(crate) fn silent<E: Event>(&self, batch: &Batch<E>) -> Vec<(String, u32)> {
        let waits = |index: &usize| batch.fate(*index).is_undecided();
        let places = self.places.iter().enumerate().filter(|(index, _)| waits(index));
        let places: HashSet<Place> = places.filter_map(|(_, place)| *place).collect();
        places.into_iter().map(|place| (self.topic(place).to_owned(), place.partition)).collect()
    }

    /// The topics of the current batch with acknowledged rows.
    pub(crate) fn acknowledged<'a, E: Event>(&'a self, batch: &'a Batch<E>) -> impl Iterator<Item = &'a str> {
        let mut seen = vec![false; self.topics.len()];
        self.places.iter().enumerate().filter_map(move |(index, place)| {
            let topic = (*place)?.topic as usize;
            let first = batch.fate(index) == Fate::Acknowledged && !std::mem::replace(&mut seen[topic], true);
            first.then(|| self.topics[topic].name.as_str())
        })
    }

    /// The acknowledged rows of the current batch by topic.
    pub(crate) fn tally<E: Event>(&self, batch: &Batch<E>) -> impl Iterator<Item = (&str, Tally)> {
        let mut tallies = vec![Tally::default(); self.topics.len()];
        for (index, place) in self.places.iter().enumerate() {
            if let (Some(place), Fate::Acknowledged) = (place, batch.fate(index)) {
                let tally = &mut tallies[place.topic as usize];
                tally.rows += 1;
                tally.bytes += batch.rows()[index].size() as u64;
            }
        }
        let named = self.topics.iter().zip(tallies).map(|(topic, tally)| (topic.name.as_str(), tally));
        named.filter(|(_, tally)| tally.rows > 0)
    }
}
