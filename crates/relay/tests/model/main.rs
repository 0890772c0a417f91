//! The protocol as a small model. The search visits every state that two relays, a few rows and some faults can reach,
//! and checks the invariants in each of them.
//!
//! ```text
//!   state.rs           the state: database, lane, relays, sessions, Kafka
//!   rules.rs           the rules of the protocol, with a switch for each
//!   step.rs            the atomic steps; they interleave in any order
//!     claim.rs         lock, read, settle, confirm
//!     flow.rs          reads of what is new, until the claim settles
//!     session.rs       send, acknowledge, fail
//!     mark.rs          H, the list of writers, the fence, the sweep
//!     environment.rs   writers, operators, topics, failover, crashes, late requests
//!   invariants.rs      what must hold
//!   search.rs          the breadth-first search, which finds shortest counterexamples
//!   progress.rs        whether the work can always be completed
//!   configurations.rs  the configurations that are searched
//!   counterexamples.rs the invariant that breaks without each rule, and the number of steps
//! ```
//!
//! The model shares no code with the relay. It defines the protocol. The simulator tests whether the code follows it.

mod claim;
mod configuration;
mod configurations;
mod counterexamples;
mod environment;
mod events;
mod flow;
mod invariants;
mod mark;
mod progress;
mod rules;
mod search;
mod session;
mod state;
mod step;

use configuration::{Configuration, Fault};
use configurations::{LARGE, SMALL};
use search::{Explored, search};
use std::time::Instant;
use step::Step;

#[test]
fn with_every_rule_no_invariant_breaks() {
    SMALL.iter().for_each(explore);
}

#[test]
#[ignore = "takes minutes: make model"]
fn with_every_rule_no_invariant_breaks_in_large_configurations() {
    LARGE.iter().for_each(explore);
}

/// Searches all states, and checks that every fault of the configuration has occurred.
fn explore(configuration: &Configuration) {
    let begun = Instant::now();
    let found = search(configuration);
    let explored = found.unwrap_or_else(|broken| panic!("{}: {broken}", configuration.name));
    println!(
        "{:<32} {:>10} states, depth {:>2}, {:>6.1} s",
        configuration.name,
        explored.states,
        explored.depth,
        begun.elapsed().as_secs_f64()
    );
    for fault in configuration.faults {
        // Priming allows no second request in flight, so this fault cannot occur.
        let expected = *fault != Fault::FirstRequestRefused;
        assert_eq!(has_happened(&explored, *fault), expected, "{}: {fault:?}", configuration.name);
    }
    let has_refused = explored.taken.iter().any(|step| matches!(step, Step::DeadLetter(_)));
    assert_eq!(has_refused, !configuration.refused.is_empty(), "{}: blocked keys", configuration.name);
    let has_probed = explored.taken.iter().any(|step| matches!(step, Step::Probe(..)));
    let has_flowed = explored.taken.iter().any(|step| matches!(step, Step::ReadOn(_)));
    assert_eq!(has_flowed, configuration.flows, "{}: flows", configuration.name);
    assert_eq!(has_probed, configuration.probes, "{}: probes", configuration.name);
}

fn has_happened(explored: &Explored, fault: Fault) -> bool {
    explored.taken.iter().any(|step| matches!(step, Step::Fault(its, _) if *its == fault))
}
