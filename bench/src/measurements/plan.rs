//! The parts of a measurement with `outbox-bench`.

use crate::advice;
use crate::checking::rows::Committed;
use crate::checking::verify;
use crate::error::BenchError;
use crate::limits;
use crate::measurements::drain;
use crate::measurements::flow;
use crate::measurements::idle;
use crate::measurements::steady::{self, Pace};
use crate::place::{Place, Route};
use crate::postgres::load::{self, Shape};
use crate::postgres::writer::Snapshot;
use crate::processes::relay::Relay;
use crate::report::{MeasuredDrain, MeasuredFlow, Report, word};
use crate::writers::Work;
use outbox_relay::config::OnSent;
use std::time::Duration;

/// The number of connections that write at full speed.
const WRITERS: u64 = 8;
/// Rows per transaction: an application that announces one change, and one that imports data.
const ROWS_PER_TRANSACTION: [u64; 2] = [1, 50];
/// Rows per second.
const RATES: [u64; 4] = [10, 100, 1_000, 5_000];
const WARM_UP: Duration = Duration::from_secs(2);

/// A part of the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// A relay that has nothing to do.
    Idle,
    /// Each half of the relay alone.
    Limits,
    /// A backlog, with rows marked and with rows deleted.
    Drain,
    /// Writers at full speed.
    Flow,
    /// Steady rates and their latency.
    Steady,
    /// A drain while a transaction holds a snapshot.
    HeldSnapshot,
    /// Drains in which all rows, or half of them, have the same key.
    HotKey,
}

/// All parts, in the order in which they are measured.
pub const PARTS: [Part; 7] =
    [Part::Idle, Part::Limits, Part::Drain, Part::Flow, Part::Steady, Part::HeldSnapshot, Part::HotKey];

/// What is measured, and with which parameters.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The parts.
    pub parts: Vec<Part>,
    /// The rows of the drains. The other parts use its keys and payload size.
    pub shape: Shape,
    /// Partitions of each topic.
    pub partitions: i32,
    /// The duration of measurements that have no natural end.
    pub time: Duration,
}

/// Runs all parts, and reports the progress.
///
/// # Errors
///
/// The first part that fails ends the run.
pub async fn run(place: &Place, plan: &Plan, say: &dyn Fn(&str)) -> Result<Report, BenchError> {
    let route = place.route(&plan.shape, plan.partitions).await?;
    let round_trip = place.topics().round_trip(&route.topics[0]).await?;
    place.close(route).await?;
    let kafka_round_trip_ms = round_trip.as_secs_f64() * 1e3;
    let report = Report::new(place, &plan.shape, plan.partitions, kafka_round_trip_ms);
    let mut run = Run { place, plan, say, report };
    for part in PARTS.into_iter().filter(|part| plan.parts.contains(part)) {
        match part {
            Part::Idle => run.idle().await?,
            Part::Limits => run.limits().await?,
            Part::Drain => {
                run.drain("plain", &plan.shape, OnSent::Mark).await?;
                run.drain("plain", &plan.shape, OnSent::Delete).await?;
            }
            Part::Flow => run.flow().await?,
            Part::Steady => run.steady().await?,
            Part::HeldSnapshot => run.held().await?,
            Part::HotKey => {
                let on_sent = place.config().outbox.on_sent;
                run.drain("hot-key-100", &Shape { hot_share: 1.0, ..plan.shape }, on_sent).await?;
                run.drain("hot-key-50", &Shape { hot_share: 0.5, ..plan.shape }, on_sent).await?;
            }
        }
    }
    let mut report = run.report;
    report.findings = advice::findings(&report);
    Ok(report)
}

struct Run<'a> {
    place: &'a Place,
    plan: &'a Plan,
    say: &'a dyn Fn(&str),
    report: Report,
}

impl Run<'_> {
    async fn idle(&mut self) -> Result<(), BenchError> {
        (self.say)("idle: a relay that has nothing to do");
        let (place, route) = (self.place, self.new_route(&self.plan.shape).await?);
        let mut relay = Relay::start(place, &route).await?;
        self.report.idle = Some(idle::measure(place, &mut relay, self.plan.time).await?);
        relay.stop().await?;
        place.close(route).await
    }

    async fn limits(&mut self) -> Result<(), BenchError> {
        let (place, shape) = (self.place, &self.plan.shape);
        let route = self.new_route(shape).await?;
        for on_sent in [OnSent::Mark, OnSent::Delete] {
            (self.say)(&format!("limits: claim and {} without Kafka", word(on_sent)));
            place.fill(shape).await?;
            let limit = Some(limits::claim_and_settle(place, &route, on_sent, shape).await?);
            match on_sent {
                OnSent::Mark => self.report.limits.claim_and_mark = limit,
                OnSent::Delete => self.report.limits.claim_and_delete = limit,
            }
        }
        (self.say)("limits: produce without PostgreSQL");
        self.report.limits.produce = Some(limits::produce(place, &route, shape).await?);
        place.close(route).await
    }

    /// Runs a drain with this `on_sent`, which may differ from the configured one.
    async fn drain(&mut self, load: &'static str, shape: &Shape, on_sent: OnSent) -> Result<(), BenchError> {
        let (place, on_sent) = (self.place, word(on_sent));
        (self.say)(&format!("drain ({load}, {on_sent}): {} rows", shape.rows));
        let route = self.new_route(shape).await?;
        place.fill(shape).await?;
        let change = |settings: crate::settings::Settings| settings.with("outbox", "on_sent", on_sent);
        let mut relay = Relay::start_with(place, &route, change).await?;
        let drain = drain::watch(place, &route, &mut relay, shape.rows).await?;
        let batches = relay.metrics().await?.batches();
        relay.stop().await?;
        let unsent = place.unsent().await?;
        if unsent != 0 {
            return Err(BenchError::Subject(format!(
                "{unsent} of {} rows are unsent after a drain",
                shape.rows
            )));
        }
        let committed = Committed(vec![shape.rows]);
        let verdict = verify::read(&place.config().kafka, &route, shape, &committed).await?;
        let limit = self.report.share(on_sent, &drain);
        self.report.drains.push(MeasuredDrain { load, on_sent, drain, batches, verdict, limit });
        place.close(route).await
    }

    /// The snapshot is taken before the rows are inserted, so that vacuum can remove none of their dead versions.
    async fn held(&mut self) -> Result<(), BenchError> {
        let snapshot = Snapshot::take(self.place.database()).await?;
        self.drain("held-snapshot", &self.plan.shape, self.place.config().outbox.on_sent).await?;
        Ok(snapshot.end().await?)
    }

    async fn flow(&mut self) -> Result<(), BenchError> {
        let (place, shape) = (self.place, &self.plan.shape);
        for rows_per_transaction in ROWS_PER_TRANSACTION {
            let writers = WRITERS.min(shape.keys);
            let work = Work { writers, rows_per_transaction, rows_per_second: None, time: self.plan.time };
            let what = format!("flow: {writers} writers, {rows_per_transaction} rows per transaction");
            (self.say)(&format!("{what}, without a relay"));
            load::empty(place.database(), &place.table()).await?;
            let alone_rows_per_second = flow::alone(place, shape, &work).await?;
            (self.say)(&format!("{what}, with a relay"));
            let route = self.new_route(shape).await?;
            let mut relay = Relay::start(place, &route).await?;
            let flow = flow::measure(place, &route, &mut relay, shape, &work).await?;
            relay.stop().await?;
            self.report.flows.push(MeasuredFlow {
                alone_rows_per_second,
                writers_share: drain::rate(flow.written_rows_per_second, alone_rows_per_second),
                delivered_share: 1.0 - drain::rate(flow.lag_rows_end as f64, flow.verdict.committed as f64),
                flow,
            });
            place.close(route).await?;
        }
        Ok(())
    }

    async fn steady(&mut self) -> Result<(), BenchError> {
        let (place, shape) = (self.place, &self.plan.shape);
        for rows_per_second in RATES {
            (self.say)(&format!("steady: {rows_per_second} rows/s"));
            load::empty(place.database(), &place.table()).await?;
            let route = self.new_route(shape).await?;
            let mut relay = Relay::start(place, &route).await?;
            let pace = Pace::of(rows_per_second, WARM_UP, self.plan.time);
            let steady = steady::measure(place, &route, &mut relay, shape, &pace).await?;
            relay.stop().await?;
            self.report.steady.push(steady);
            place.close(route).await?;
        }
        Ok(())
    }

    async fn new_route(&self, shape: &Shape) -> Result<Route, BenchError> {
        self.place.route(shape, self.plan.partitions).await
    }
}
