//! The order of events: the relay starts, the shop opens and closes, the last events arrive, the relay ends, Kafka is read
//! to its end, and both ends are compared.

use super::ledger::SharedLedger;
use super::reader::Reader;
use super::schema::OwnSchema;
use super::screen::{Screen, View};
use super::shop::Shop;
use super::{database, order, story};
use crate::broker::MockBroker;
use anyhow::{Context, anyhow};
use outbox_relay::cli::exit::Failed;
use outbox_relay::cli::run::Signals;
use outbox_relay::config::Config;
use outbox_relay::postgres::connection::connect::Database;
use outbox_relay::relay::health::stats::Stats;
use outbox_relay::supervisor::{self, End, Ready, StartError, Until};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{oneshot, watch};
use tokio::time::{interval, sleep};

/// The relay has to reach Postgres and the broker within this time.
const READY: Duration = Duration::from_secs(20);
/// What was committed has to arrive within this time after the shop has closed.
const DRAIN: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// What a demo plays with.
pub(super) struct Scene<'a> {
    pub(super) config: &'a Config,
    pub(super) broker: &'a MockBroker,
    pub(super) screen: &'a mut Screen,
    pub(super) signals: &'a mut Signals,
    /// How long the shop is open.
    pub(super) time: Duration,
}

impl Scene<'_> {
    /// Plays it, and shows what came of it.
    pub(super) async fn play(mut self, schema: &mut OwnSchema) -> Result<(), Failed> {
        let database = database(self.config, supervisor::connections(self.config))?;
        let facts = supervisor::check_schema(self.config, &database).await.map_err(|error| match error {
            StartError::Unavailable(error) => Failed::Unavailable(anyhow!(error)),
            StartError::Unfit(error) => Failed::Configuration(anyhow!(error)),
        })?;
        let stats = Arc::new(Stats::new());
        let kafka = supervisor::kafka(self.config, &stats).map_err(|failure| anyhow!("{failure}"))?;
        let kafka_answers = supervisor::reach_kafka(&kafka).await;
        let ready = Ready { facts, kafka, kafka_answers };
        let ledger = SharedLedger::default();
        let reader = Reader::start(&self.broker.bootstrap_servers(), &order::TOPICS, ledger.clone())
            .map_err(|failure| anyhow!("{failure}"))?;

        let config = self.config;
        let trading = self.trade(&ledger, &stats);
        let relayed = relay_while(config, database, ready, &stats, trading).await;
        tokio::task::spawn_blocking(|| reader.finish()).await.context("reading to the end")?;
        relayed?;
        let unsure = ledger.lock().take_unsure();
        let committed = schema.committed(unsure).await?;
        ledger.lock().committed(committed, Instant::now());
        self.compare(&ledger)
    }

    /// Opens the shop for a time, and waits until what it committed has arrived.
    async fn trade(&mut self, ledger: &SharedLedger, stats: &Stats) -> anyhow::Result<()> {
        tokio::select! {
            ready = ready(stats) => ready?,
            () = self.signals.next() => return Ok(()),
        }
        let shop = Shop::open(self.config.postgres.clone(), ledger.clone());
        let begun = Instant::now();
        let mut redraw = interval(self.screen.interval());
        while begun.elapsed() < self.time {
            tokio::select! {
                _ = redraw.tick() => self.show(ledger, begun, stats.not_ready()),
                () = sleep(self.time.saturating_sub(begun.elapsed())) => {}
                () = self.signals.next() => break,
            }
        }
        tokio::task::spawn_blocking(|| shop.close()).await.context("closing the shop")??;
        let closed = Instant::now();
        while !ledger.lock().is_drained() && closed.elapsed() < DRAIN {
            let doing = || stats.not_ready().unwrap_or_else(|| "closed, the last events arrive".to_owned());
            tokio::select! {
                _ = redraw.tick() => self.show(ledger, begun, Some(doing())),
                () = sleep(LOOK_EVERY) => {}
                () = self.signals.next() => {
                    anyhow::bail!("asked again to end: what is on its way was not waited for")
                }
            }
        }
        self.show(ledger, begun, Some("done".to_owned()));
        Ok(())
    }

    fn show(&mut self, ledger: &SharedLedger, begun: Instant, doing: Option<String>) {
        let figures = ledger.lock().figures();
        self.screen.show(&View { elapsed: begun.elapsed(), time: self.time, figures, doing });
    }

    fn compare(self, ledger: &SharedLedger) -> Result<(), Failed> {
        let ledger = ledger.lock();
        let (verdict, figures) = (ledger.verdict(), ledger.figures());
        story::end(self.screen, &figures, &verdict, ledger.latency());
        if let Some(fault) = ledger.last_fault() {
            self.screen.say(&format!("  something failed on the way, at last {fault}"));
        }
        if verdict.committed == 0 && ledger.last_fault().is_some() {
            // Nothing lost of nothing is no success.
            Err(Failed::Failure(anyhow!("the shop could not write anything")))
        } else if verdict.is_exact() {
            Ok(())
        } else {
            Err(Failed::Failure(anyhow!("what arrived is not what was committed")))
        }
    }
}

/// Relays until `work` is done and everything in flight is settled.
async fn relay_while(
    config: &Config,
    database: Database,
    ready: Ready,
    stats: &Arc<Stats>,
    work: impl Future<Output = anyhow::Result<()>>,
) -> anyhow::Result<()> {
    let (done, asked) = oneshot::channel::<()>();
    let asked = async { _ = asked.await };
    let (_configs, reloads) = watch::channel(config.clone());
    let relay = supervisor::run(config, database, ready, Arc::clone(stats), Until::Asked, asked, reloads);
    let mut relay = Box::pin(relay);
    tokio::select! {
        end = &mut relay => return Err(anyhow!("the relay ended by itself: {end:?}")),
        worked = work => worked?,
    }
    drop(done);
    match relay.await {
        End::Asked => Ok(()),
        end => Err(anyhow!("the relay did not end as asked: {end:?}")),
    }
}

/// Waits until the relay has reached both ends, so that its start is not taken for its latency.
async fn ready(stats: &Stats) -> anyhow::Result<()> {
    let begun = Instant::now();
    while let Some(reason) = stats.not_ready() {
        anyhow::ensure!(begun.elapsed() < READY, "the relay cannot begin: {reason}");
        sleep(LOOK_EVERY).await;
    }
    Ok(())
}
