//! The parts of a measurement with `outbox-bench`.

use crate::limits;
use crate::load::{self, Shape};
use crate::place::Place;
use crate::relay::with_relay;
use crate::report::{MeasuredDrain, MeasuredFlow, Report, word};
use crate::settings::Settings;
use crate::steady::{self, Pace};
use crate::writers::{Snapshot, Work};
use crate::{BenchError, advice, drain, flow};
use clap::ValueEnum;
use outbox_relay::config::OnSent;
use std::time::Duration;

/// The number of connections that write at full speed.
const WRITERS: u64 = 8;
/// Rows per transaction: an application that announces one change, and one that imports data.
const ROWS_PER_TRANSACTION: [u64; 2] = [1, 50];
const RATES: [u64; 4] = [10, 100, 1_000, 5_000];
const WARM_UP: Duration = Duration::from_secs(2);

/// The parts, in the order in which they are measured. Comments on them would appear in `--help`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Part {
    Idle,
    Limits,
    Drain,
    Flow,
    Steady,
    HeldSnapshot,
    HotKey,
}

/// What is measured, and with which parameters.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Empty: all.
    pub parts: Vec<Part>,
    /// The rows of the drains. The other parts use its keys and payload size.
    pub shape: Shape,
    pub partitions: i32,
    /// The duration of measurements that have no natural end.
    pub time: Duration,
}

/// Runs all parts, and says which one runs. What was measured before a failure is in the report too.
pub async fn run(
    place: &Place,
    plan: &Plan,
    say: &dyn Fn(&str),
    report: &mut Report,
) -> Result<(), BenchError> {
    let route = place.route(&plan.shape, plan.partitions).await?;
    let round_trip = place.topics.round_trip(&route.topics[0]).await?;
    route.close().await?;
    let kafka_round_trip_ms = round_trip.as_secs_f64() * 1e3;
    *report = Report::new(place, &plan.shape, plan.partitions, kafka_round_trip_ms);
    let mut run = Run { place, plan, say, report };
    let chosen = |part: &&Part| plan.parts.is_empty() || plan.parts.contains(part);
    for part in Part::value_variants().iter().filter(chosen) {
        let on_sent = place.config.outbox.on_sent;
        match part {
            Part::Idle => run.idle().await?,
            Part::Limits => run.limits().await?,
            Part::Drain => {
                run.drain("plain", &plan.shape, OnSent::Mark).await?;
                run.drain("plain", &plan.shape, OnSent::Delete).await?;
            }
            Part::Flow => run.flow().await?,
            Part::Steady => run.steady().await?,
            Part::HeldSnapshot => {
                // Taken before the rows are inserted, so that vacuum can remove none of their dead versions.
                let snapshot = Snapshot::take(&place.database).await?;
                run.drain("held-snapshot", &plan.shape, on_sent).await?;
                snapshot.end().await?;
            }
            Part::HotKey => {
                run.drain("hot-key-100", &Shape { hot_share: 1.0, ..plan.shape }, on_sent).await?;
                run.drain("hot-key-50", &Shape { hot_share: 0.5, ..plan.shape }, on_sent).await?;
            }
        }
    }
    report.findings = advice::findings(report);
    Ok(())
}

struct Run<'a> {
    place: &'a Place,
    plan: &'a Plan,
    say: &'a dyn Fn(&str),
    report: &'a mut Report,
}

impl Run<'_> {
    async fn idle(&mut self) -> Result<(), BenchError> {
        (self.say)("idle: a relay that has nothing to do");
        let Plan { shape, partitions, time, .. } = self.plan;
        let idle = with_relay(self.place, shape, *partitions, async |_, relay| {
            flow::measure_idle(self.place, relay, *time).await
        });
        self.report.idle = Some(idle.await?);
        Ok(())
    }

    async fn limits(&mut self) -> Result<(), BenchError> {
        let (place, shape) = (self.place, &self.plan.shape);
        let route = place.route(shape, self.plan.partitions).await?;
        for on_sent in [OnSent::Mark, OnSent::Delete] {
            (self.say)(&format!("limits: claim and {} without Kafka", word(on_sent)));
            place.fill(shape).await?;
            let limit = Some(limits::claim_and_settle(&route, on_sent).await?);
            match on_sent {
                OnSent::Mark => self.report.limits.claim_and_mark = limit,
                OnSent::Delete => self.report.limits.claim_and_delete = limit,
            }
        }
        (self.say)("limits: produce without PostgreSQL");
        self.report.limits.produce = Some(limits::produce(&route).await?);
        route.close().await
    }

    /// Runs a drain with this `on_sent`, which may differ from the configured one.
    async fn drain(&mut self, load: &'static str, shape: &Shape, on_sent: OnSent) -> Result<(), BenchError> {
        let (place, on_sent) = (self.place, word(on_sent));
        (self.say)(&format!("drain ({load}, {on_sent}): {} rows", shape.rows));
        let route = place.route(shape, self.plan.partitions).await?;
        place.fill(shape).await?;
        let change = |settings: Settings| settings.with("outbox", "on_sent", on_sent);
        let (drain, batches, verdict) = drain::by_relay(&route, change).await?;
        let unsent = load::unsent(&place.database, &place.table()).await?;
        if unsent != 0 {
            let text = format!("{unsent} of {} rows are unsent after a drain", shape.rows);
            return Err(BenchError::Subject(text));
        }
        let limit = self.report.share(on_sent, &drain);
        self.report.drains.push(MeasuredDrain { load, on_sent, drain, batches, verdict, limit });
        route.close().await
    }

    async fn flow(&mut self) -> Result<(), BenchError> {
        let (place, shape) = (self.place, &self.plan.shape);
        for rows_per_transaction in ROWS_PER_TRANSACTION {
            let writers = WRITERS.min(shape.keys);
            let work = Work { writers, rows_per_transaction, rows_per_second: None, time: self.plan.time };
            let what = format!("flow: {writers} writers, {rows_per_transaction} rows per transaction");
            (self.say)(&format!("{what}, without a relay"));
            place.empty().await?;
            let alone_rows_per_second = flow::alone(place, shape, &work).await?;
            (self.say)(&format!("{what}, with a relay"));
            let flow = with_relay(place, shape, self.plan.partitions, async |route, relay| {
                flow::measure(route, relay, &work).await
            });
            let flow = flow.await?;
            self.report.flows.push(MeasuredFlow {
                alone_rows_per_second,
                writers_share: drain::rate(flow.written_rows_per_second, alone_rows_per_second),
                delivered_share: 1.0 - drain::rate(flow.lag_rows_end as f64, flow.verdict.committed as f64),
                flow,
            });
        }
        Ok(())
    }

    async fn steady(&mut self) -> Result<(), BenchError> {
        let (place, shape) = (self.place, &self.plan.shape);
        for rows_per_second in RATES {
            (self.say)(&format!("steady: {rows_per_second} rows/s"));
            place.empty().await?;
            let pace = Pace::of(rows_per_second, WARM_UP, self.plan.time);
            let steady = with_relay(place, shape, self.plan.partitions, async |route, relay| {
                steady::measure(route, relay, &pace).await
            });
            self.report.steady.push(steady.await?);
        }
        Ok(())
    }
}
