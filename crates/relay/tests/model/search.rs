//! A breadth-first search of every state that a configuration can reach.

use super::configuration::{Configuration, Written};
use super::invariants::{self, Invariant};
use super::progress::Onward;
use super::state::State;
use super::step::{Step, successors};
use std::collections::HashSet;
use std::fmt;
use std::hash::{Hash, Hasher};

/// The result of a complete search that found no broken invariant.
#[derive(Clone, Debug)]
pub struct Explored {
    pub states: usize,
    /// The maximum number of steps from the first state to any other.
    pub depth: usize,
    /// Every step that was taken at least once.
    pub taken: HashSet<Step>,
}

/// A shortest path to a state that breaks an invariant.
#[derive(Clone, Debug)]
pub struct Counterexample {
    pub events: &'static [Written],
    pub broken: Invariant,
    pub steps: Vec<Step>,
}

/// Searches all states, or stops at the first state that breaks an invariant.
pub fn search(configuration: &Configuration) -> Result<Explored, Counterexample> {
    let mut seen = Seen::new(configuration);
    let mut onward = Onward::default();
    let mut taken = HashSet::new();
    seen.add(configuration.initial(), 0);
    let (mut at, mut level_end, mut depth) = (0, 1, 0);
    while at < seen.states.len() {
        if at == level_end {
            level_end = seen.states.len();
            depth += 1;
        }
        let state = seen.states[at];
        let next = successors(configuration, &state);
        if next.iter().all(|(step, _)| step.is_optional()) {
            onward.at_rest(at);
            if let Some(broken) = invariants::at_rest(configuration, &state) {
                return Err(seen.counterexample(broken, at));
            }
        }
        for (step, next) in next {
            let (to, is_new) = seen.add(next, at);
            if !step.is_optional() {
                onward.leads(at, to);
            }
            if is_new {
                taken.insert(step);
                if let Some(broken) = next.history.broken {
                    return Err(seen.counterexample(broken, to));
                }
            }
        }
        at += 1;
    }
    match onward.first_without_rest(seen.states.len()) {
        Some(stuck) => Err(seen.counterexample(Invariant::Progress, stuck)),
        None => Ok(Explored { states: seen.states.len(), depth, taken }),
    }
}

/// The states that were found, in the order of their distance, and the predecessor of each.
struct Seen<'a> {
    configuration: &'a Configuration,
    states: Vec<State>,
    parents: Vec<u32>,
    /// A hash table with open addressing. It contains indices of `states`, plus 1. A `HashMap` would store every state
    /// twice.
    slots: Vec<u32>,
}

impl Seen<'_> {
    fn new(configuration: &Configuration) -> Seen<'_> {
        Seen { configuration, states: Vec::new(), parents: Vec::new(), slots: vec![0; 1 << 12] }
    }

    /// Adds a state. Returns its index, and whether it is new.
    fn add(&mut self, state: State, parent: usize) -> (usize, bool) {
        let state = state.canonical(self.configuration.relays);
        if (self.states.len() + 1) * 2 > self.slots.len() {
            self.grow();
        }
        let slot = self.slot(&state);
        if self.slots[slot] != 0 {
            return (self.slots[slot] as usize - 1, false);
        }
        self.states.push(state);
        self.parents.push(parent as u32);
        self.slots[slot] = u32::try_from(self.states.len()).expect("fewer than 4 billion states");
        (self.states.len() - 1, true)
    }

    /// The slot of the state, or the free slot where it belongs.
    fn slot(&self, state: &State) -> usize {
        let mask = self.slots.len() - 1;
        let mut slot = hash(state) as usize & mask;
        while self.slots[slot] != 0 && self.states[self.slots[slot] as usize - 1] != *state {
            slot = (slot + 1) & mask;
        }
        slot
    }

    fn grow(&mut self) {
        self.slots = vec![0; self.slots.len() * 2];
        let mask = self.slots.len() - 1;
        for (index, state) in self.states.iter().enumerate() {
            let mut slot = hash(state) as usize & mask;
            while self.slots[slot] != 0 {
                slot = (slot + 1) & mask;
            }
            self.slots[slot] = index as u32 + 1;
        }
    }

    fn counterexample(&self, broken: Invariant, index: usize) -> Counterexample {
        Counterexample { events: self.configuration.events, broken, steps: self.way_to(index) }
    }

    /// The steps from the initial state. States are stored in canonical form, in which relays may have changed places.
    /// The path is therefore walked again from the start, where each relay keeps its number.
    fn way_to(&self, index: usize) -> Vec<Step> {
        let mut way = vec![index];
        while let Some(at) = way.last().filter(|at| **at != 0) {
            way.push(self.parents[*at] as usize);
        }
        let mut state = self.configuration.initial();
        let mut steps = Vec::new();
        for at in way.iter().rev().skip(1) {
            let target = self.states[*at];
            let mut all = successors(self.configuration, &state).into_iter();
            let found = all.find(|(_, next)| next.canonical(self.configuration.relays) == target);
            let (step, next) = found.expect("a path that was found before");
            steps.push(step);
            state = next;
        }
        steps
    }
}

fn hash(state: &State) -> u64 {
    let mut hasher = Multiplying::default();
    state.hash(&mut hasher);
    hasher.finish()
}

/// A fast hash that does not resist hostile keys.
#[derive(Default)]
struct Multiplying(u64);

impl Hasher for Multiplying {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u8(&mut self, value: u8) {
        self.write_u64(value.into());
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0.rotate_left(5) ^ value).wrapping_mul(0x517c_c1b7_2722_0a95);
    }

    fn finish(&self) -> u64 {
        // The product's high bits depend on every input bit. Its low bits do not.
        self.0 ^ (self.0 >> 32)
    }
}

impl fmt::Display for Counterexample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:?} breaks after {} steps:", self.broken, self.steps.len())?;
        for (number, event) in self.events.iter().enumerate() {
            writeln!(f, "      event {number}: {event}")?;
        }
        for (number, step) in self.steps.iter().enumerate() {
            writeln!(f, "{:>4}. {step}", number + 1)?;
        }
        Ok(())
    }
}
