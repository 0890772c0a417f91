//! What came of a batch, topic by topic.

use super::{Place, Session, State};
use crate::relay::event::Event;
use crate::relay::outbox::Held;
use crate::relay::publisher::Producer;
use crate::relay::reason::STUCK;
use crate::relay::rows::Fate;
use crate::relay::rows::batch::Batch;
use std::collections::HashSet;
use std::time::Duration;

/// Rows of one topic.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// How many.
    pub rows: u64,
    /// Their size.
    pub bytes: u64,
}

impl<P: Producer> Session<P> {
    /// Topics of the current batch whose rows have to wait, with the reason, and the first row of each that is open.
    pub fn held<'a, E: Event>(&'a self, batch: &'a Batch<E>) -> Vec<Held<'a, E>> {
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

    /// No report has arrived for `patience`, although the cluster answers. Closes the session and holds the topics of the
    /// partitions with rows in flight, if rows of other partitions were acknowledged: in this batch or, `elsewhere`, in
    /// another one. Returns whether it did. A row that was never sent says nothing about its partition.
    pub fn hold_stuck<E: Event>(&mut self, batch: &Batch<E>, elsewhere: bool, patience: Duration) -> bool {
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

    /// The partitions whose rows wait for their reports, by topic.
    pub fn silent<E: Event>(&self, batch: &Batch<E>) -> Vec<(String, u32)> {
        let waits = |index: &usize| batch.fate(*index).is_undecided();
        let places = self.places.iter().enumerate().filter(|(index, _)| waits(index));
        let places: HashSet<Place> = places.filter_map(|(_, place)| *place).collect();
        places.into_iter().map(|place| (self.topic(place).to_owned(), place.partition)).collect()
    }

    /// Topics of the current batch of which Kafka has acknowledged rows.
    pub fn acknowledged<'a, E: Event>(&'a self, batch: &'a Batch<E>) -> impl Iterator<Item = &'a str> {
        let mut seen = vec![false; self.topics.len()];
        self.places.iter().enumerate().filter_map(move |(index, place)| {
            let topic = (*place)?.topic as usize;
            let first = batch.fate(index) == Fate::Acknowledged && !std::mem::replace(&mut seen[topic], true);
            first.then(|| self.topics[topic].name.as_str())
        })
    }

    /// What of the current batch Kafka has acknowledged, topic by topic.
    pub fn tally<E: Event>(&self, batch: &Batch<E>) -> impl Iterator<Item = (&str, Tally)> {
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
