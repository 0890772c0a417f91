//! Which fault comes when: drawn from a seed, so that a run can be repeated.

use std::fmt;
use std::time::Duration;

use crate::application::{KINDS, topic};

/// What happens to whom, and for how long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub kind: Kind,
    /// Whom it happens to, if it is a relay or its connections.
    pub relay: usize,
    /// Whom it happens to, if it is a topic.
    victim: String,
    /// How long it lasts.
    pub lasts: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    KillRelay,
    FreezeRelayBriefly,
    FreezeRelay,
    RestartPostgres,
    CrashPostgres,
    KillPostgres,
    TerminateBackends,
    KillKafka,
    StopKafka,
    FreezeKafka,
    CutPostgres,
    LosePostgres,
    LoseCommits,
    CutKafka,
    HoldUpKafka,
    LoseKafka,
    LowerLimit,
    StarveTopic,
}

/// What a kind of fault needs for itself alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Relay,
    Postgres,
    Kafka,
}

impl Kind {
    pub const ALL: [Kind; 18] = [
        Kind::KillRelay,
        Kind::FreezeRelayBriefly,
        Kind::FreezeRelay,
        Kind::RestartPostgres,
        Kind::CrashPostgres,
        Kind::KillPostgres,
        Kind::TerminateBackends,
        Kind::KillKafka,
        Kind::StopKafka,
        Kind::FreezeKafka,
        Kind::CutPostgres,
        Kind::LosePostgres,
        Kind::LoseCommits,
        Kind::CutKafka,
        Kind::HoldUpKafka,
        Kind::LoseKafka,
        Kind::LowerLimit,
        Kind::StarveTopic,
    ];

    /// In the words of the report.
    pub fn name(self) -> &'static str {
        match self {
            Kind::KillRelay => "relay killed",
            Kind::FreezeRelayBriefly => "relay frozen briefly",
            Kind::FreezeRelay => "relay frozen",
            Kind::RestartPostgres => "Postgres restarted (fast)",
            Kind::CrashPostgres => "Postgres restarted (immediate)",
            Kind::KillPostgres => "Postgres killed",
            Kind::TerminateBackends => "backends terminated",
            Kind::KillKafka => "Kafka killed",
            Kind::StopKafka => "Kafka stopped",
            Kind::FreezeKafka => "Kafka frozen",
            Kind::CutPostgres => "way to Postgres cut",
            Kind::LosePostgres => "way to Postgres black-holed",
            Kind::LoseCommits => "answers to COMMIT lost",
            Kind::CutKafka => "way to Kafka cut",
            Kind::HoldUpKafka => "way to Kafka held up",
            Kind::LoseKafka => "way to Kafka black-holed",
            Kind::LowerLimit => "topic's size limit lowered",
            Kind::StarveTopic => "topic without enough replicas",
        }
    }

    /// Whether the others have to take over what the relay had claimed.
    pub fn is_taken_over(self) -> bool {
        matches!(self, Kind::KillRelay | Kind::FreezeRelay | Kind::LosePostgres)
    }

    fn part(self) -> Part {
        match self {
            Kind::RestartPostgres | Kind::CrashPostgres | Kind::KillPostgres | Kind::TerminateBackends => {
                Part::Postgres
            }
            // A topic is altered on a broker that answers.
            Kind::KillKafka | Kind::StopKafka | Kind::FreezeKafka | Kind::LowerLimit | Kind::StarveTopic => {
                Part::Kafka
            }
            _ => Part::Relay,
        }
    }

    /// How long it lasts, in milliseconds, around the time after which a frozen relay is overtaken.
    fn lasts(self, takeover_timeout: u64) -> std::ops::Range<u64> {
        match self {
            Kind::KillRelay => 0..4_000,
            Kind::FreezeRelayBriefly => 50..takeover_timeout * 2 / 3,
            Kind::FreezeRelay => takeover_timeout * 4 / 3..takeover_timeout * 3,
            Kind::RestartPostgres | Kind::CrashPostgres | Kind::KillPostgres => 0..3_000,
            Kind::TerminateBackends => 100..1_500,
            Kind::KillKafka | Kind::StopKafka => 0..6_000,
            Kind::FreezeKafka => 500..8_000,
            Kind::CutPostgres | Kind::CutKafka => 0..3_000,
            Kind::LosePostgres | Kind::HoldUpKafka | Kind::LoseKafka => 500..takeover_timeout * 3,
            Kind::LoseCommits => 200..1_500,
            Kind::LowerLimit => 1_000..5_000,
            Kind::StarveTopic => 2_000..9_000,
        }
    }
}

impl Fault {
    /// The topic that it happens to, if it is a fault of a topic.
    pub fn topic(&self) -> Option<&str> {
        matches!(self.kind, Kind::LowerLimit | Kind::StarveTopic).then_some(self.victim.as_str())
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let victim = match self.kind.part() {
            Part::Relay => format!(", relay {}", self.relay + 1),
            _ => self.topic().map_or_else(String::new, |topic| format!(", {topic}")),
        };
        write!(f, "{}{victim}, for {:.1} s", self.kind.name(), self.lasts.as_secs_f64())
    }
}

/// A fault, and perhaps another one that comes while it lasts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// How long nothing happens before.
    pub pause: Duration,
    pub fault: Fault,
    /// How long after the first one it begins.
    pub second: Option<(Duration, Fault)>,
}

/// The steps of a run, without end. Each kind comes before any comes again.
pub struct Schedule {
    random: fastrand::Rng,
    relays: usize,
    takeover_timeout: Duration,
    /// What is left of the round.
    round: Vec<Kind>,
}

impl Schedule {
    pub fn new(seed: u64, relays: usize, takeover_timeout: Duration) -> Self {
        Self { random: fastrand::Rng::with_seed(seed), relays, takeover_timeout, round: Vec::new() }
    }

    pub fn next_step(&mut self) -> Step {
        if self.round.is_empty() {
            self.round = Kind::ALL.to_vec();
            self.random.shuffle(&mut self.round);
        }
        let kind = self.round.pop().expect("a round has kinds");
        let pause = Duration::from_millis(self.random.u64(300..2_500));
        let fault = self.fault(kind);
        let second = (self.random.u32(..4) == 0).then(|| self.second(kind, fault.lasts));
        Step { pause, fault, second }
    }

    fn fault(&mut self, kind: Kind) -> Fault {
        let lasts = self.random.u64(kind.lasts(self.takeover_timeout.as_millis() as u64));
        Fault {
            kind,
            relay: self.random.usize(..self.relays),
            victim: topic(KINDS[self.random.usize(..KINDS.len())].name),
            lasts: Duration::from_millis(lasts),
        }
    }

    /// One of another part, which begins before the first one ends.
    fn second(&mut self, first: Kind, lasts: Duration) -> (Duration, Fault) {
        let others: Vec<Kind> = Kind::ALL.into_iter().filter(|kind| kind.part() != first.part()).collect();
        let kind = self.random.choice(others).expect("there are other parts");
        (lasts.mul_f64(self.random.f64()), self.fault(kind))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(seed: u64) -> Vec<Step> {
        let mut schedule = Schedule::new(seed, 3, Duration::from_secs(3));
        (0..100).map(|_| schedule.next_step()).collect()
    }

    #[test]
    fn a_seed_repeats_its_schedule_and_another_one_does_not() {
        assert_eq!(steps(7), steps(7));
        assert_ne!(steps(7), steps(8));
    }

    #[test]
    fn every_kind_comes_before_any_comes_again() {
        let mut kinds: Vec<Kind> = steps(7)[..Kind::ALL.len()].iter().map(|step| step.fault.kind).collect();
        kinds.sort();
        assert_eq!(kinds, Kind::ALL);
    }

    #[test]
    fn two_faults_at_once_are_of_different_parts() {
        let steps = steps(7);
        let pairs: Vec<(Kind, Kind)> =
            steps.iter().filter_map(|step| Some((step.fault.kind, step.second.as_ref()?.1.kind))).collect();
        assert!(pairs.len() > 10, "{pairs:?}");
        assert!(pairs.iter().all(|(first, second)| first.part() != second.part()), "{pairs:?}");
    }
}
