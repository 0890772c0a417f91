//! The sequence of the demo: the relay starts, the shop opens and closes, the last events arrive, the relay ends, the
//! consumer reads Kafka to the end, and both ends are compared.

use super::ledger::SharedLedger;
use super::reader::Reader;
use super::schema::OwnSchema;
use super::screen::{Screen, View};
use super::shop::Shop;
use super::{database, order, story};
use crate::broker::MockBroker;
use anyhow::{Context, anyhow};
use outbox_relay::admin::{Listening, Observed};
use outbox_relay::cli::failed::Failed;
use outbox_relay::cli::run::Signals;
use outbox_relay::config::Config;
use outbox_relay::relay::health::stats::Stats;
use outbox_relay::supervisor::{self, End, Ready, StartError, Until};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{oneshot, watch};
use tokio::time::{interval, sleep};

/// The time within which the relay must reach PostgreSQL and the broker.
const READY: Duration = Duration::from_secs(20);
/// The time within which all committed events must arrive after the shop has closed.
const DRAIN: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Everything that the demo uses.
pub(super) struct Scene<'a> {
    pub(super) config: &'a Config,
    pub(super) broker: &'a MockBroker,
    /// For the status page.
    pub(super) admin: Option<Listening>,
    pub(super) screen: &'a mut Screen,
    pub(super) signals: &'a mut Signals,
    /// How long the shop is open.
    pub(super) time: Duration,
}

impl Scene<'_> {
    /// Runs the demo and prints the result.
    pub(super) async fn play(mut self, schema: &mut OwnSchema) -> Result<(), Failed> {
        let database = database(self.config, supervisor::connections(self.config))?;
        let facts =
            supervisor::check_schema(self.config, &database, None).await.map_err(|error| match error {
                StartError::Unavailable(error) => Failed::Unavailable(anyhow!(error)),
                StartError::Unfit(error) | StartError::Older(error) => Failed::Configuration(anyhow!(error)),
            })?;
        let stats = Arc::new(Stats::new());
        let kafka = self.config.cluster().map_err(|failure| anyhow!("{failure}"))?;
        let kafka = kafka.counting_into(Arc::clone(&stats));
        let kafka_answers = supervisor::reach_kafka(&kafka, &stats, std::future::ready(())).await;
        let ready = Ready { database, facts, kafka, kafka_answers, stats: Arc::clone(&stats) };
        let ledger = SharedLedger::default();
        let reader = Reader::start(&self.broker.bootstrap_servers(), &order::TOPICS, ledger.clone())
            .map_err(|failure| anyhow!("{failure}"))?;

        let config = self.config;
        let admin = self.admin.take();
        let trading = self.trade(&ledger, &stats);
        let relayed = relay_while(config, ready, admin, &stats, trading).await;
        tokio::task::spawn_blocking(|| reader.finish()).await.context("reading to the end")?;
        relayed?;
        let unsure = ledger.lock().take_unsure();
        let committed = schema.committed(unsure).await?;
        ledger.lock().committed(committed, Instant::now());
        self.compare(&ledger)
    }

    /// Opens the shop for some time, and waits until everything that it committed has arrived.
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
            let doing =
                || stats.not_ready().unwrap_or_else(|| "closed, waiting for the last events".to_owned());
            tokio::select! {
                _ = redraw.tick() => self.show(ledger, begun, Some(doing())),
                () = sleep(POLL_INTERVAL) => {}
                () = self.signals.next() => {
                    anyhow::bail!("interrupted again: did not wait for events in flight")
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
            self.screen.say(&format!("  last error: {fault}"));
        }
        if verdict.committed == 0 && ledger.last_fault().is_some() {
            // If no event was written, losing none is not a success.
            Err(Failed::Failure(anyhow!("the shop could not write anything")))
        } else if verdict.is_exact() {
            Ok(())
        } else {
            Err(Failed::Failure(anyhow!("the received events differ from the committed ones")))
        }
    }
}

/// Runs the relay until `work` is done and all rows in flight are settled.
async fn relay_while(
    config: &Config,
    ready: Ready,
    admin: Option<Listening>,
    stats: &Arc<Stats>,
    work: impl Future<Output = anyhow::Result<()>>,
) -> anyhow::Result<()> {
    let (done, stop) = oneshot::channel::<()>();
    let stop = async { _ = stop.await };
    let (_configs, reloads) = watch::channel(config.clone());
    let relay = supervisor::run(config, ready, Until::Requested, stop, reloads);
    let mut relay = Box::pin(relay);
    tokio::select! {
        never = serve(admin, config, stats) => match never {},
        end = &mut relay => return Err(anyhow!("the relay ended unexpectedly: {end:?}")),
        worked = work => worked?,
    }
    drop(done);
    match relay.await {
        End::Requested => Ok(()),
        end => Err(anyhow!("the relay did not shut down correctly: {end:?}")),
    }
}

/// Serves the status page.
async fn serve(admin: Option<Listening>, config: &Config, stats: &Arc<Stats>) -> Infallible {
    let Some(admin) = admin else { return std::future::pending().await };
    let (_configs, config) = watch::channel(config.clone());
    admin.serve(Observed { stats: Arc::clone(stats), config, config_file: None }).await
}

/// Waits until the relay has reached both servers, so that its startup does not count as latency.
async fn ready(stats: &Stats) -> anyhow::Result<()> {
    let begun = Instant::now();
    while let Some(reason) = stats.not_ready() {
        anyhow::ensure!(begun.elapsed() < READY, "the relay cannot start: {reason}");
        sleep(POLL_INTERVAL).await;
    }
    Ok(())
}
