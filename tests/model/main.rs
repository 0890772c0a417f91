//! The protocol as a small model, searched exhaustively: every state that two relays, a few rows and some faults can
//! reach, and in each of them the invariants.
//!
//! ```text
//!   state.rs           what there is: database, lane, relays, sessions, Kafka
//!   rules.rs           the rules of the protocol, each with a switch
//!   step.rs            the steps, atomic, with anything in between
//!     claim.rs         lock, read, settle, confirm
//!     session.rs       hand over, acknowledge, fail
//!     mark.rs          H, the list of writers, the fence, the sweep
//!     environment.rs   writers, operators, topics, failover, crashes, late requests
//!   invariants.rs      what must hold
//!   search.rs          breadth first; a counterexample is a shortest one
//!   progress.rs        whether the work can always come to its end
//!   configurations.rs  what is searched
//!   counterexamples.rs without a rule: what breaks, and in how many steps
//! ```
//!
//! It shares no code with the relay: it says what the protocol is, and the simulator whether the code follows it.

mod claim;
mod configuration;
mod configurations;
mod counterexamples;
mod environment;
mod events;
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
fn with_every_rule_nothing_breaks() {
    SMALL.iter().for_each(explore);
}

#[test]
#[ignore = "takes minutes: make model"]
fn with_every_rule_nothing_breaks_in_large_configurations() {
    LARGE.iter().for_each(explore);
}

/// Searches to the end, and looks that what the configuration is for has happened.
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
        // Priming leaves no second request that could be under way.
        let expected = *fault != Fault::FirstRequestRefused;
        assert_eq!(has_happened(&explored, *fault), expected, "{}: {fault:?}", configuration.name);
    }
    let has_refused = explored.taken.iter().any(|step| matches!(step, Step::DeadLetter(_)));
    assert_eq!(has_refused, !configuration.refused.is_empty(), "{}: blocked keys", configuration.name);
    let has_probed = explored.taken.iter().any(|step| matches!(step, Step::Probe(..)));
    assert_eq!(has_probed, configuration.probes, "{}: probes", configuration.name);
}

fn has_happened(explored: &Explored, fault: Fault) -> bool {
    explored.taken.iter().any(|step| matches!(step, Step::Fault(its, _) if *its == fault))
}
