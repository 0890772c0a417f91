//! The limit of each half of the relay: the rate at which PostgreSQL serves and settles rows if Kafka costs nothing,
//! and the rate at which Kafka accepts rows if PostgreSQL costs nothing.
//!
//! Both run the relay's own scout, workers and cycle in this process, with one of the two sides replaced.

use crate::BenchError;
use crate::drain::rate;
use crate::fakes::{AtOnce, Supply};
use crate::load::Shape;
use crate::place::{RECORD_BYTES_MAX, Route};
use crate::usage::{Meter, Party, Reading, Usage};
use outbox_relay::config::{Config, OnSent};
use outbox_relay::postgres::connection::pool::Database;
use outbox_relay::postgres::cycle::claim::PostgresOutbox;
use outbox_relay::postgres::cycle::scout::PostgresScoutQueries;
use outbox_relay::postgres::cycle::statements::Statements;
use outbox_relay::relay::Relay;
use outbox_relay::relay::cycle::worker;
use outbox_relay::relay::health::stats::Stats;
use outbox_relay::relay::lanes::marks::Marks;
use outbox_relay::relay::lanes::scout::{Scout, ScoutQueries};
use outbox_relay::relay::outbox::Outbox;
use outbox_relay::relay::publisher::Publisher;
use outbox_relay::supervisor;
use serde::Serialize;
use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

const POLL_INTERVAL: Duration = Duration::from_millis(2);
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// The amount of rows for Kafka: this number of batches per worker, but not more than the bytes below.
const BATCHES: u64 = 20;
const PRODUCE_BYTES_MAX: u64 = 256 << 20;
/// The approximate memory of a row in addition to its payload, in bytes.
const ROW_OVERHEAD: usize = 150;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Limit {
    /// The measured rows: all except those of the first batches, during which connections are opened.
    pub rows: u64,
    pub seconds: f64,
    pub rows_per_second: f64,
    /// What the parties used: the relay's code, and the server that it uses.
    pub usage: Vec<Usage>,
}

/// Claims, reads and settles the rows of the outbox, with a publisher that acknowledges immediately.
pub async fn claim_and_settle(route: &Route<'_>, on_sent: OnSent) -> Result<Limit, BenchError> {
    let (config, shape) = (configured(route)?, &route.shape);
    let stats = Arc::new(Stats::new());
    let database = Database::new(&config.postgres, supervisor::connections(&config), Arc::clone(&stats))?;
    let facts = supervisor::check_schema(&config, &database, None)
        .await
        .map_err(|error| BenchError::Configuration(error.to_string()))?;
    let relay = Rc::new(relay(AtOnce { partitions: route.partitions as u32 }, &config, &stats));
    let statements = Statements::new(
        &config.outbox.table,
        facts.payload,
        on_sent,
        config.outbox.topic.clone(),
        RECORD_BYTES_MAX,
    );
    let statements = Rc::new(statements);
    let worker = |_| {
        let (database, statements) = (database.clone(), Rc::clone(&statements));
        PostgresOutbox::new(database, statements, config.relay.takeover_timeout)
    };
    let outboxes = (0..config.relay.workers).map(worker).collect();
    let queries = PostgresScoutQueries::new(database.clone(), Rc::clone(&statements));
    let server = route.place.parties.postgres.clone().ok();
    // Without the first batches, if enough batches are left.
    let round = round(&config, shape);
    let first = if shape.rows >= 4 * round { round } else { 0 };
    run(relay, outboxes, queries, server, first..shape.rows).await
}

/// Publishes rows that are generated in memory.
pub async fn produce(route: &Route<'_>) -> Result<Limit, BenchError> {
    let (config, shape) = (configured(route)?, &route.shape);
    let stats = Arc::new(Stats::new());
    let cluster = config.cluster()?;
    let relay = Rc::new(relay(cluster, &config, &stats));
    let round = round(&config, shape);
    let bytes = (shape.payload_bytes + ROW_OVERHEAD) as u64;
    let rows = (BATCHES * round).min(PRODUCE_BYTES_MAX / bytes).max(2 * round);
    let supply = Supply::new(&Shape { rows, ..*shape });
    let outboxes = (0..config.relay.workers).map(|_| supply.clone()).collect();
    let server = route.place.parties.kafka.clone().ok();
    run(relay, outboxes, supply, server, round..rows).await
}

/// The rows of one batch per worker.
fn round(config: &Config, shape: &Shape) -> u64 {
    let fit = config.relay.batch_bytes.as_usize() / (shape.payload_bytes + ROW_OVERHEAD);
    (config.relay.workers * config.relay.batch_size.min(fit).max(1)) as u64
}

fn configured(route: &Route<'_>) -> Result<Config, BenchError> {
    route.place.settings.clone().with("outbox", "topic", route.template.to_string()).load()
}

fn relay<P>(publisher: P, config: &Config, stats: &Arc<Stats>) -> Relay<P> {
    let bounds = config.limits();
    let marks = Rc::new(RefCell::new(Marks::new()));
    Relay::new(publisher, config.outbox.topic.clone().into(), bounds, marks, Arc::clone(stats))
}

/// Runs scout and workers until no rows are left. The measurement begins when the first of `rows` are settled.
async fn run<O: Outbox + 'static, P: Publisher + 'static>(
    relay: Rc<Relay<P>>,
    outboxes: Vec<O>,
    queries: impl ScoutQueries + 'static,
    server: Option<Party>,
    rows: Range<u64>,
) -> Result<Limit, BenchError> {
    let mut parties = vec![Party::this_process("relay")];
    parties.extend(server);
    let meter = Meter::start(parties);
    relay.kafka.gate.open();
    let mut tasks = JoinSet::new();
    for (number, outbox) in (1..).zip(outboxes) {
        tasks.spawn_local(worker::work(Rc::clone(&relay), number, outbox, fastrand::Rng::new()));
    }
    let scout = Scout::new(Rc::clone(&relay), queries, fastrand::Rng::new());
    // A set, so that it ends with this future.
    let mut scouting = JoinSet::new();
    scouting.spawn_local(scout.drain());
    let watched = watch(&relay, &meter, rows).await;
    relay.lanes.board.stop();
    while tasks.join_next().await.is_some() {}
    if let Some(Ok(scouted)) = scouting.join_next().await {
        scouted.map_err(|undrained| BenchError::Subject(format!("the scout ended: {undrained:?}")))?;
    }
    let Watched { first, began, last, ended } = watched?;
    let (rows, seconds) = (last - first, (ended.at - began.at).as_secs_f64());
    Ok(Limit {
        rows,
        seconds,
        rows_per_second: rate(rows as f64, seconds),
        usage: meter.used(&began, &ended, rows),
    })
}

struct Watched {
    /// The number of rows that were settled when the measurement began.
    first: u64,
    began: Reading,
    last: u64,
    ended: Reading,
}

/// Measures from the settlement of the first rows to that of the last.
async fn watch<P>(relay: &Relay<P>, meter: &Meter, rows: Range<u64>) -> Result<Watched, BenchError> {
    let (mut began, mut changed) = (None, (Instant::now(), 0));
    loop {
        let settled = relay.stats.published.get();
        if settled > changed.1 {
            changed = (Instant::now(), settled);
        }
        if began.is_none() && settled >= rows.start {
            began = Some((settled, meter.read()));
        }
        if let Some((first, began)) = began.as_ref().filter(|_| settled >= rows.end) {
            let (first, began) = (*first, began.clone());
            return Ok(Watched { first, began, last: settled, ended: meter.read() });
        }
        if relay.lanes.board.is_stopped() || changed.0.elapsed() > SILENCE_MAX {
            let why = match (relay.kafka.gate.reason(), relay.stats.not_ready()) {
                (Some(failure), _) => failure.to_string(),
                (None, Some(reason)) => reason,
                (None, None) => "no more rows were settled".to_owned(),
            };
            return Err(BenchError::Subject(format!("{settled} of {} rows were settled: {why}", rows.end)));
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}
