//! Runs many schedules, on every core.

use super::plan::Plan;
use super::promises::Outcome;
use super::run::{Verdict, run};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

/// A number from an environment variable.
fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

/// Runs this number of schedules, starting at the seed `SEED`, and adds up their outcomes. `SCHEDULES` is another number, and
/// `SCHEDULES_MAX` a limit.
///
/// # Panics
///
/// If a promise is broken. The message contains the seed and the history.
pub fn explore(plan: fn(u64) -> Plan, schedules: u64) -> Outcome {
    each(plan, schedules, "", |_, _| true)
}

/// The same, with a limit for each schedule's outcome, as text and as a check.
pub fn each(
    plan: fn(u64) -> Plan,
    schedules: u64,
    limit: &str,
    fits: fn(&Plan, &Outcome) -> bool,
) -> Outcome {
    let first = number("SEED").unwrap_or(1);
    let most = number("SCHEDULES_MAX").unwrap_or(u64::MAX);
    let schedules = number("SCHEDULES").unwrap_or(schedules.min(most));
    let begun = Instant::now();
    let sum = Mutex::new(Outcome::default());
    let broken = first_broken(first, schedules, |seed| {
        let plan = plan(seed);
        let mut verdict = run(seed, &plan, false);
        match verdict.outcome {
            Ok(outcome) if !fits(&plan, &outcome) => {
                verdict.outcome = Err(format!("the outcome exceeds the limit ({limit}): {outcome:?}"));
                Some(verdict)
            }
            Ok(outcome) => {
                sum.lock().unwrap().add(&outcome);
                None
            }
            Err(_) => Some(verdict),
        }
    });
    if let Some((seed, verdict)) = broken {
        report(seed, &plan(seed), &verdict);
    }
    let sum = sum.into_inner().unwrap();
    println!("{schedules} schedules in {:.1?}: {sum:?}", begun.elapsed());
    sum
}

/// The first of these seeds for which `look` returns something, with the result.
pub fn first_broken<T: Send>(
    first: u64,
    schedules: u64,
    look: impl Fn(u64) -> Option<T> + Sync,
) -> Option<(u64, T)> {
    let next = AtomicU64::new(first);
    let found = AtomicBool::new(false);
    let broken: Mutex<Option<(u64, T)>> = Mutex::new(None);
    let work = || {
        while !found.load(Ordering::Relaxed) {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= first + schedules {
                return;
            }
            if let Some(what) = look(seed) {
                found.store(true, Ordering::Relaxed);
                let mut broken = broken.lock().unwrap();
                if broken.as_ref().is_none_or(|(other, _)| seed < *other) {
                    *broken = Some((seed, what));
                }
            }
        }
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(work);
        }
    });
    broken.into_inner().unwrap()
}

/// Repeats the schedule to record its history. It must end in the same way.
fn report(seed: u64, plan: &Plan, verdict: &Verdict) -> ! {
    let again = run(seed, plan, true);
    assert_eq!(again.fingerprint, verdict.fingerprint, "seed {seed} is not reproducible");
    let promise = verdict.outcome.as_ref().unwrap_err();
    // With one test thread, tests run on the main thread.
    let thread = std::thread::current();
    let test = thread.name().filter(|name| *name != "main").unwrap_or("NAME");
    panic!(
        "{promise}\n{plan:#?}\n{}\n\n{promise}\nRepeat with: \
         SEED={seed} SCHEDULES=1 cargo test --workspace --features fail-points --lib --test simulation {test}",
        again.history
    );
}
