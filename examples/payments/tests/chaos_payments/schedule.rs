//! The schedule of faults. It is drawn from a seed, so that a run can be repeated.

use std::time::Duration;

use crate::world::LOCK_SECONDS;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    KillRelay,
    KillProvider,
    KillApi,
    FreezeApi,
    KillConsumer,
    FreezeConsumer,
    KillClient,
    RestartPostgres,
    KillPostgres,
    RestartKafka,
    KillKafka,
    /// The relay sends rows again that it has already sent.
    SendAgain,
    /// The consumers read records again that they have already read.
    RewindConsumers,
}

/// What a kind of fault needs exclusively.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Processes,
    Postgres,
    Kafka,
}

impl Kind {
    pub const ALL: [Kind; 13] = [
        Kind::KillRelay,
        Kind::KillProvider,
        Kind::KillApi,
        Kind::FreezeApi,
        Kind::KillConsumer,
        Kind::FreezeConsumer,
        Kind::KillClient,
        Kind::RestartPostgres,
        Kind::KillPostgres,
        Kind::RestartKafka,
        Kind::KillKafka,
        Kind::SendAgain,
        Kind::RewindConsumers,
    ];

    /// The name in the report.
    pub fn name(self) -> &'static str {
        match self {
            Kind::KillRelay => "relay killed",
            Kind::KillProvider => "provider killed",
            Kind::KillApi => "API killed",
            Kind::FreezeApi => "API frozen",
            Kind::KillConsumer => "consumer killed",
            Kind::FreezeConsumer => "consumer frozen",
            Kind::KillClient => "client killed",
            Kind::RestartPostgres => "PostgreSQL restarted",
            Kind::KillPostgres => "PostgreSQL killed",
            Kind::RestartKafka => "Kafka restarted",
            Kind::KillKafka => "Kafka killed",
            Kind::SendAgain => "sent rows put back",
            Kind::RewindConsumers => "consumers rewound",
        }
    }

    fn part(self) -> Part {
        match self {
            Kind::RestartPostgres | Kind::KillPostgres | Kind::SendAgain => Part::Postgres,
            Kind::RestartKafka | Kind::KillKafka | Kind::RewindConsumers => Part::Kafka,
            _ => Part::Processes,
        }
    }

    /// The duration in milliseconds. A process is frozen for longer than its lock or its session.
    fn lasts(self) -> std::ops::Range<u64> {
        let lock = LOCK_SECONDS * 1_000;
        match self {
            Kind::FreezeApi | Kind::FreezeConsumer => lock + 300..lock + 1_500,
            Kind::RestartPostgres | Kind::KillPostgres => 0..1_000,
            Kind::RestartKafka | Kind::KillKafka => 0..1_500,
            Kind::SendAgain | Kind::RewindConsumers => 0..1,
            _ => 0..1_200,
        }
    }
}

/// A kind of fault, its target, and its duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    pub kind: Kind,
    /// Taken modulo the number of targets.
    pub victim: usize,
    pub lasts: Duration,
}

/// A fault, and possibly a simultaneous one of another part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The quiet time before the fault.
    pub pause: Duration,
    pub fault: Fault,
    pub second: Option<Fault>,
}

/// Rounds of steps. In each round, every kind is the first fault of one step.
pub struct Schedule {
    random: fastrand::Rng,
    kinds: &'static [Kind],
}

impl Schedule {
    /// A schedule with these kinds.
    pub fn new(seed: u64, kinds: &'static [Kind]) -> Schedule {
        Schedule { random: fastrand::Rng::with_seed(seed), kinds }
    }

    pub fn next_round(&mut self) -> Vec<Step> {
        let mut kinds = self.kinds.to_vec();
        self.random.shuffle(&mut kinds);
        kinds.into_iter().map(|kind| self.step(kind)).collect()
    }

    fn step(&mut self, kind: Kind) -> Step {
        // A broker takes long to restart, so it is only the first fault, and others happen while it is unavailable.
        let may_be_second = |other: &Kind| other.part() != kind.part() && other.part() != Part::Kafka;
        let others: Vec<Kind> = self.kinds.iter().copied().filter(may_be_second).collect();
        let pause = Duration::from_millis(self.random.u64(100..900));
        let fault = self.fault(kind);
        let drawn = if self.random.u32(..3) == 0 { self.random.choice(others) } else { None };
        Step { pause, fault, second: drawn.map(|other| self.fault(other)) }
    }

    fn fault(&mut self, kind: Kind) -> Fault {
        let victim = self.random.usize(..12);
        Fault { kind, victim, lasts: Duration::from_millis(self.random.u64(kind.lasts())) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_its_rounds() {
        let round = |seed| Schedule::new(seed, &Kind::ALL).next_round();
        assert_eq!(round(7), round(7));
        assert_ne!(round(7), round(8));
    }

    #[test]
    fn every_kind_occurs_in_a_round_and_simultaneous_faults_are_of_different_parts() {
        let round = Schedule::new(7, &Kind::ALL).next_round();
        let mut kinds: Vec<Kind> = round.iter().map(|step| step.fault.kind).collect();
        kinds.sort();
        assert_eq!(kinds, Kind::ALL);
        let pairs: Vec<(Kind, Kind)> =
            round.iter().filter_map(|step| Some((step.fault.kind, step.second?.kind))).collect();
        assert!(!pairs.is_empty());
        assert!(pairs.iter().all(|(first, second)| first.part() != second.part()), "{pairs:?}");
    }
}
