//! The results of `outbox-bench`, as `--json` prints them. While `format` stays the same, fields may be added, but none
//! is removed or changes its meaning.

use crate::advice::Finding;
use crate::checker::Verdict;
use crate::drain::Drain;
use crate::flow::{Flow, Idle};
use crate::limits::Limit;
use crate::load::Shape;
use crate::place::Place;
use crate::relay::Batches;
use crate::steady::Steady;
use outbox_relay::config::OnSent;
use serde::Serialize;
use std::collections::BTreeMap;
use std::num::NonZero;

/// All results. Parts that were left out are empty or missing.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    pub format: u32,
    pub version: &'static str,
    pub machine: Machine,
    pub settings: Settings,
    pub shape: Shape,
    pub partitions: i32,
    /// A relay that has nothing to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle: Option<Idle>,
    /// Each half of the relay alone.
    #[serde(skip_serializing_if = "Limits::is_empty")]
    pub limits: Limits,
    pub drains: Vec<MeasuredDrain>,
    /// Writers at full speed.
    pub flows: Vec<MeasuredFlow>,
    pub steady: Vec<Steady>,
    /// What limits the throughput, and what to change. The most important finding comes first.
    pub findings: Vec<Finding>,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct Machine {
    /// The number of cores that this process may use.
    pub cores: u64,
    pub postgres_version: String,
    pub postgres_settings: BTreeMap<String, String>,
    pub max_wal_bytes: u64,
    /// The median round trip of an empty statement.
    pub postgres_round_trip_ms: f64,
    /// The median round trip of a request that needs no work on the broker.
    pub kafka_round_trip_ms: f64,
    /// Why there are no figures for PostgreSQL's processes. Absent if there are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub postgres_not_visible: Option<String>,
    /// Why there are no figures for Kafka's processes. Absent if there are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kafka_not_visible: Option<String>,
}

/// The settings of the relay, as configured.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Settings {
    /// `mark` or `delete`.
    pub on_sent: &'static str,
    pub workers: usize,
    pub batch_size: usize,
    pub batch_bytes: u64,
}

/// Each half of the relay alone.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Limits {
    /// Claiming, reading and marking, with a Kafka that acknowledges immediately.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claim_and_mark: Option<Limit>,
    /// Claiming, reading and deleting, with a Kafka that acknowledges immediately.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claim_and_delete: Option<Limit>,
    /// Publishing rows that are not in a table.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub produce: Option<Limit>,
}

/// A drain, with its kind of load.
#[derive(Clone, Debug, Serialize)]
pub struct MeasuredDrain {
    /// `plain`, `held-snapshot`, `hot-key-100` or `hot-key-50`.
    pub load: &'static str,
    /// `mark` or `delete`.
    pub on_sent: &'static str,
    #[serde(flatten)]
    pub drain: Drain,
    pub batches: Batches,
    pub verdict: Verdict,
    /// The lowest known limit of the drain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<Share>,
}

/// A rate relative to its limit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Share {
    /// `claim-and-settle`, `produce` or `cpu`. The last one is the number of cores divided by the CPU time that a row
    /// costs the three parties together.
    pub by: &'static str,
    pub rows_per_second: f64,
    pub share: f64,
}

/// Writers at full speed, without and with a relay.
#[derive(Clone, Debug, Serialize)]
pub struct MeasuredFlow {
    pub alone_rows_per_second: f64,
    /// The rate of the writers with a relay, relative to that.
    pub writers_share: f64,
    /// The share of the rows that had arrived when the writers ended.
    pub delivered_share: f64,
    #[serde(flatten)]
    pub flow: Flow,
}

impl Report {
    pub fn new(place: &Place, shape: &Shape, partitions: i32, kafka_round_trip_ms: f64) -> Report {
        let (server, parties, config) = (&place.server, &place.parties, &place.config);
        Report {
            format: 1,
            version: env!("CARGO_PKG_VERSION"),
            machine: Machine {
                cores: std::thread::available_parallelism().map_or(1, NonZero::get) as u64,
                postgres_version: server.version.clone(),
                postgres_settings: server.settings.clone(),
                max_wal_bytes: server.max_wal_bytes,
                postgres_round_trip_ms: server.round_trip.as_secs_f64() * 1e3,
                kafka_round_trip_ms,
                postgres_not_visible: parties.postgres.as_ref().err().cloned(),
                kafka_not_visible: parties.kafka.as_ref().err().cloned(),
            },
            settings: Settings {
                on_sent: word(config.outbox.on_sent),
                workers: config.relay.workers,
                batch_size: config.relay.batch_size,
                batch_bytes: config.relay.batch_bytes.as_u64(),
            },
            shape: *shape,
            partitions,
            ..Report::default()
        }
    }

    /// Whether anything was measured.
    pub fn has_results(&self) -> bool {
        self.idle.is_some() || !self.limits.is_empty() || self.verdicts().next().is_some()
    }

    pub fn verdicts(&self) -> impl Iterator<Item = &Verdict> {
        let drains = self.drains.iter().map(|drain| &drain.verdict);
        let flows = self.flows.iter().map(|flow| &flow.flow.verdict);
        drains.chain(flows).chain(self.steady.iter().map(|steady| &steady.verdict))
    }

    pub fn has_all_parties(&self) -> bool {
        self.machine.postgres_not_visible.is_none() && self.machine.kafka_not_visible.is_none()
    }

    /// The lowest known limit of a drain.
    pub fn share(&self, on_sent: &str, drain: &Drain) -> Option<Share> {
        let claim = match on_sent {
            "mark" => &self.limits.claim_and_mark,
            _ => &self.limits.claim_and_delete,
        };
        let alone = |by, limit: &Option<Limit>| limit.as_ref().map(|limit| (by, limit.rows_per_second));
        let known = [
            alone("claim-and-settle", claim),
            alone("produce", &self.limits.produce),
            drain.cpu_limit(self.machine.cores as f64).map(|limit| ("cpu", limit)),
        ];
        let (by, limit) = known.into_iter().flatten().min_by(|a, b| a.1.total_cmp(&b.1))?;
        Some(Share { by, rows_per_second: limit, share: drain.rows_per_second / limit })
    }
}

impl Limits {
    fn is_empty(&self) -> bool {
        self.claim_and_mark.is_none() && self.claim_and_delete.is_none() && self.produce.is_none()
    }
}

/// The value in the configuration.
pub fn word(on_sent: OnSent) -> &'static str {
    match on_sent {
        OnSent::Mark => "mark",
        OnSent::Delete => "delete",
    }
}
