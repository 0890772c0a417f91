use super::*;
use std::cell::RefCell;

#[derive(Debug)]
struct Fault(Verdict);

impl Classify for Fault {
    fn verdict(&self) -> Verdict {
        self.0
    }
}

/// Fails with each verdict of the list, then succeeds. Records when each attempt began.
struct Script {
    faults: RefCell<Vec<Verdict>>,
    begun: Instant,
    at: RefCell<Vec<Duration>>,
}

impl Script {
    fn new(faults: &[Verdict]) -> Script {
        let faults = RefCell::new(faults.iter().rev().copied().collect());
        Script { faults, begun: Instant::now(), at: RefCell::default() }
    }

    #[allow(clippy::unused_async)] // an attempt must be async
    async fn attempt(&self) -> Result<&'static str, Fault> {
        self.at.borrow_mut().push(self.begun.elapsed());
        match self.faults.borrow_mut().pop() {
            Some(verdict) => Err(Fault(verdict)),
            None => Ok("done"),
        }
    }

    fn attempts(&self) -> usize {
        self.at.borrow().len()
    }
}

use Verdict::{Again, Final, Unknown};

#[tokio::test(start_paused = true)]
async fn attempts_without_effect_are_retried() {
    let script = Script::new(&[Again, Again]);
    assert!(matches!(Policy::default().run(|| script.attempt()).await, Ok("done")));
    assert_eq!(script.attempts(), 3);
}

#[tokio::test(start_paused = true)]
async fn final_errors_are_not_retried() {
    let script = Script::new(&[Final]);
    let failure = Policy::default().run(|| script.attempt()).await.unwrap_err();
    assert!(matches!(failure, Failure::GaveUp { attempts: 1, reason: StopReason::Final, .. }), "{failure:?}");
}

#[tokio::test(start_paused = true)]
async fn an_unknown_outcome_is_retried_only_with_a_key() {
    let script = Script::new(&[Again, Unknown]);
    let failure = Policy::default().run(|| script.attempt()).await.unwrap_err();
    assert!(matches!(failure, Failure::Unknown { attempts: 2, .. }), "{failure:?}");
    assert_eq!(script.attempts(), 2);

    let script = Script::new(&[Again, Unknown]);
    let keys = RefCell::new(Vec::new());
    let work = |key| {
        keys.borrow_mut().push(key);
        script.attempt()
    };
    assert!(matches!(Policy::default().keyed("k").run(work).await, Ok("done")));
    assert_eq!(*keys.borrow(), ["k"; 3]);

    let script = Script::new(&[Unknown; 9]);
    let policy = Policy::default().attempts_max(3);
    let failure = policy.keyed("k").run(|_| script.attempt()).await.unwrap_err();
    assert!(matches!(failure, Failure::Unknown { attempts: 3, .. }), "{failure:?}");
}

/// Synchronous work that fails with each of these verdicts, then succeeds.
fn work(faults: &[Verdict]) -> impl FnMut() -> Result<&'static str, Fault> {
    let mut faults = faults.iter();
    move || faults.next().map_or(Ok("done"), |verdict| Err(Fault(*verdict)))
}

/// There is no runtime, so a timer of tokio would panic.
#[test]
fn synchronous_work_is_retried_without_a_runtime() {
    let policy = Policy::default().first_pause(Duration::from_millis(1));
    assert!(matches!(policy.run_blocking(work(&[Again, Again])), Ok("done")));
    let failure = policy.run_blocking(work(&[Again, Unknown])).unwrap_err();
    assert!(matches!(failure, Failure::Unknown { attempts: 2, .. }), "{failure:?}");
    let mut unkeyed = work(&[Again, Unknown]);
    assert!(matches!(policy.keyed("k").run_blocking(|_| unkeyed()), Ok("done")));
}

#[tokio::test(start_paused = true)]
async fn pauses_double_up_to_the_longest_and_use_the_whole_range() {
    let policy = Policy::default().attempts_max(12).within(Duration::MAX);
    let (mut shortest, mut longest) = ([1.0_f64; 11], [0.0_f64; 11]);
    for _ in 0..300 {
        let script = Script::new(&[Again; 12]);
        let failure = policy.run(|| script.attempt()).await.unwrap_err();
        assert!(matches!(failure, Failure::GaveUp { attempts: 12, reason: StopReason::Attempts, .. }));
        let at = script.at.borrow();
        for (n, pair) in at.windows(2).enumerate() {
            let most = (0.02 * 2_f64.powi(n as i32)).min(2.0);
            let share = (pair[1] - pair[0]).as_secs_f64() / most;
            assert!(share <= 1.1, "pause {n} was {share} of the longest"); // the clock has a resolution of 1 ms
            shortest[n] = shortest[n].min(share);
            longest[n] = longest[n].max(share);
        }
    }
    assert!(shortest.iter().all(|share| *share < 0.2), "{shortest:?}");
    assert!(longest.iter().all(|share| *share > 0.8), "{longest:?}");
}

#[tokio::test(start_paused = true)]
async fn no_attempt_begins_after_the_time_limit() {
    let within = Duration::from_millis(300);
    for _ in 0..50 {
        let script = Script::new(&[Again; 100]);
        let policy = Policy::default().attempts_max(100).within(within);
        let failure = policy.run(|| script.attempt()).await.unwrap_err();
        assert!(matches!(failure, Failure::GaveUp { reason: StopReason::Time, .. }), "{failure:?}");
        let at = script.at.borrow();
        assert!(at.len() > 2 && at.iter().all(|at| *at <= within + Duration::from_millis(1)), "{at:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_used_up_budget_stops_all_retries() {
    let policy = Policy::default().budget(Budget::new(3));
    let mut attempts = 0;
    for _ in 0..20 {
        let script = Script::new(&[Again; 100]);
        let failure = policy.run(|| script.attempt()).await.unwrap_err();
        assert!(matches!(failure, Failure::GaveUp { reason: StopReason::Budget, .. }), "{failure:?}");
        attempts += script.attempts();
    }
    // 20 first attempts, a burst of 3 retries, and one more that ten calls have earned.
    assert_eq!(attempts, 20 + 3 + 1);
}

#[tokio::test(start_paused = true)]
async fn a_later_failure_does_not_make_an_unknown_outcome_known() {
    for later in [Again, Final] {
        let script = Script::new(&[Unknown, later, later]);
        let policy = Policy::default().attempts_max(3).keyed("k");
        let failure = policy.run(|_| script.attempt()).await.unwrap_err();
        assert!(matches!(failure, Failure::Unknown { .. }), "{failure:?}");
    }
}
