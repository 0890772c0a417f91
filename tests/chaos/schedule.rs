//! The schedule of faults. It is drawn from a seed, so that a run can be repeated.

use std::fmt;
use std::time::Duration;

use crate::application::{KINDS, topic};

/// A kind of fault, its target, and its duration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PostgresFault {
    pub kind: Kind,
    /// The target, if it is a relay or its connections.
    pub relay: usize,
    /// The target, if it is a topic.
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
    DelayKafka,
    LoseKafka,
    LowerLimit,
    StarveTopic,
}

/// What a kind of fault needs exclusively.
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
        Kind::DelayKafka,
        Kind::LoseKafka,
        Kind::LowerLimit,
        Kind::StarveTopic,
    ];

    /// The name in the report.
    pub fn name(self) -> &'static str {
        match self {
            Kind::KillRelay => "relay killed",
            Kind::FreezeRelayBriefly => "relay frozen briefly",
            Kind::FreezeRelay => "relay frozen",
            Kind::RestartPostgres => "PostgreSQL restarted (fast)",
            Kind::CrashPostgres => "PostgreSQL restarted (immediate)",
            Kind::KillPostgres => "PostgreSQL killed",
            Kind::TerminateBackends => "backends terminated",
            Kind::KillKafka => "Kafka killed",
            Kind::StopKafka => "Kafka stopped",
            Kind::FreezeKafka => "Kafka frozen",
            Kind::CutPostgres => "connection to PostgreSQL cut",
            Kind::LosePostgres => "connection to PostgreSQL black-holed",
            Kind::LoseCommits => "replies to COMMIT lost",
            Kind::CutKafka => "connection to Kafka cut",
            Kind::DelayKafka => "connection to Kafka delayed",
            Kind::LoseKafka => "connection to Kafka black-holed",
            Kind::LowerLimit => "topic's size limit lowered",
            Kind::StarveTopic => "topic with too few replicas",
        }
    }

    /// Whether other relays must take over the lanes that the relay had claimed.
    pub fn is_taken_over(self) -> bool {
        matches!(self, Kind::KillRelay | Kind::FreezeRelay | Kind::LosePostgres)
    }

    fn part(self) -> Part {
        match self {
            Kind::RestartPostgres | Kind::CrashPostgres | Kind::KillPostgres | Kind::TerminateBackends => {
                Part::Postgres
            }
            // A topic can only be changed while the broker answers.
            Kind::KillKafka | Kind::StopKafka | Kind::FreezeKafka | Kind::LowerLimit | Kind::StarveTopic => {
                Part::Kafka
            }
            _ => Part::Relay,
        }
    }

    /// The duration in milliseconds, around the time after which a frozen relay is replaced.
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
            Kind::LosePostgres | Kind::DelayKafka | Kind::LoseKafka => 500..takeover_timeout * 3,
            Kind::LoseCommits => 200..1_500,
            Kind::LowerLimit => 1_000..5_000,
            Kind::StarveTopic => 2_000..9_000,
        }
    }
}

impl PostgresFault {
    /// The topic that is the target, if it is a fault of a topic.
    pub fn topic(&self) -> Option<&str> {
        matches!(self.kind, Kind::LowerLimit | Kind::StarveTopic).then_some(self.victim.as_str())
    }
}

impl fmt::Display for PostgresFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let victim = match self.kind.part() {
            Part::Relay => format!(", relay {}", self.relay + 1),
            _ => self.topic().map_or_else(String::new, |topic| format!(", {topic}")),
        };
        write!(f, "{}{victim}, for {:.1} s", self.kind.name(), self.lasts.as_secs_f64())
    }
}

/// A fault, and possibly a second one that occurs at the same time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The quiet time before the fault.
    pub pause: Duration,
    pub fault: PostgresFault,
    /// The second fault, and its delay after the first one.
    pub second: Option<(Duration, PostgresFault)>,
}

/// The steps of a run, without end. Every kind occurs before any kind occurs again.
pub struct Schedule {
    random: fastrand::Rng,
    relays: usize,
    takeover_timeout: Duration,
    /// The kinds that have not occurred in this round yet.
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

    fn fault(&mut self, kind: Kind) -> PostgresFault {
        let lasts = self.random.u64(kind.lasts(self.takeover_timeout.as_millis() as u64));
        PostgresFault {
            kind,
            relay: self.random.usize(..self.relays),
            victim: topic(KINDS[self.random.usize(..KINDS.len())].name),
            lasts: Duration::from_millis(lasts),
        }
    }

    /// A fault of another part, which begins before the first one ends.
    fn second(&mut self, first: Kind, lasts: Duration) -> (Duration, PostgresFault) {
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
    fn a_seed_repeats_its_schedule() {
        assert_eq!(steps(7), steps(7));
        assert_ne!(steps(7), steps(8));
    }

    #[test]
    fn every_kind_occurs_before_any_occurs_again() {
        let mut kinds: Vec<Kind> = steps(7)[..Kind::ALL.len()].iter().map(|step| step.fault.kind).collect();
        kinds.sort();
        assert_eq!(kinds, Kind::ALL);
    }

    #[test]
    fn simultaneous_faults_are_of_different_parts() {
        let steps = steps(7);
        let pairs: Vec<(Kind, Kind)> =
            steps.iter().filter_map(|step| Some((step.fault.kind, step.second.as_ref()?.1.kind))).collect();
        assert!(pairs.len() > 10, "{pairs:?}");
        assert!(pairs.iter().all(|(first, second)| first.part() != second.part()), "{pairs:?}");
    }
}
