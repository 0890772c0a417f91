//! `outbox-relay demo`: a shop, the relay, a broker and a consumer in one process, and what came of it.
//!
//! [`order`] is the application, [`reader`] the consumer, the relay between them is the real one. [`ledger`] notes what
//! was committed and what arrived, and [`verdict`] compares the two.

mod ledger;
mod order;
mod reader;
mod schema;
mod screen;
mod shop;
mod story;
mod verdict;

use super::exit::Failed;
use super::{block_on, log, run};
use crate::config::{self, Config};
use crate::kafka::mock::MockBroker;
use crate::postgres::check::Facts;
use crate::postgres::connect::Database;
use crate::relay::stats::Stats;
use crate::supervisor::{self, End, StartError, Until};
use anyhow::{Context, anyhow};
use clap::Args;
use ledger::SharedLedger;
use reader::Reader;
use schema::OwnSchema;
use screen::{Screen, View};
use shop::Shop;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

const PARTITIONS: i32 = 12;
/// The relay has to reach Postgres and the broker within this time.
const READY: Duration = Duration::from_secs(20);
/// What was committed has to arrive within this time after the shop has closed.
const DRAIN: Duration = Duration::from_secs(30);

/// Watch a shop's events reach Kafka: nothing to configure, nothing left behind.
#[derive(Debug, Args)]
#[command(after_help = "\
A shop places orders and enqueues their events in the same transactions; the relay moves them to a broker inside of \
this process; a consumer reads them, and both ends are compared. Works in a schema of its own, outbox_demo, which it \
drops at the end.

`make demo` starts a private Postgres for it.

Exit codes: 0 every event arrived once and in order, 1 one did not, 2 usage, 69 Postgres cannot be reached, 78 the \
schema outbox_demo is not the demo's, or may not be made.")]
pub struct Demo {
    /// The database to play in, as for psql: postgres://user@localhost/app.
    #[arg(long, value_name = "URL")]
    postgres: Option<String>,
    /// How long the shop is open.
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
}

impl Demo {
    /// Runs it.
    pub fn run(self) -> Result<(), Failed> {
        let Some(url) = self.postgres else {
            return Err(Failed::Usage(
                "the demo needs a Postgres to play in: `make demo` starts a private one, or pass\n  \
                 --postgres postgres://USER@HOST/DATABASE\nIt works in a schema of its own, outbox_demo, and drops \
                 that at the end."
                    .to_owned(),
            ));
        };
        let screen = Screen::new();
        let broker = MockBroker::start(&order::TOPICS, PARTITIONS).map_err(|failure| anyhow!("{failure}"))?;
        let config = configure(&url, &broker, &screen)?;
        log::init(&config.log)?;
        block_on(demonstrate(config, &broker, screen, Duration::from_secs(self.seconds)))?
    }
}

/// The relay's own configuration, with its defaults.
fn configure(url: &str, broker: &MockBroker, screen: &Screen) -> Result<Config, Failed> {
    // The panel says what the relay waits for; a log would be written across it.
    let level = if screen.is_terminal() { "off" } else { "warn" };
    let settings = [
        ("POSTGRES__URL", url),
        ("POSTGRES__APPLICATION_NAME", "outbox-relay demo"),
        ("KAFKA__BOOTSTRAP_SERVERS", &broker.bootstrap_servers()),
        ("OUTBOX__TABLE", schema::OUTBOX),
        ("ADMIN__LISTEN", "off"),
        ("LOG__LEVEL", level),
    ];
    let settings = settings.map(|(name, value)| (format!("OUTBOX_RELAY__{name}"), value.to_owned()));
    config::load(None, settings.into_iter())
        // The user gave an argument and knows of no variable.
        .map_err(|findings| {
            let findings = findings.to_string();
            let shown = findings.replace("environment variable OUTBOX_RELAY__POSTGRES__URL", "--postgres");
            Failed::Usage(format!("the demo cannot begin\n{shown}"))
        })
}

async fn demonstrate(
    config: Config,
    broker: &MockBroker,
    mut screen: Screen,
    time: Duration,
) -> Result<(), Failed> {
    let mut early = Box::pin(run::asked_to_end());
    let control = database(&config, 1)?;
    let connected = tokio::select! {
        connected = OwnSchema::connect(control) => connected?,
        () = &mut early => return Ok(()),
    };
    let mut schema = connected.create(&config.outbox.table).await?;
    story::begin(&mut screen, time);
    let played = Box::pin(play(&config, broker, &mut screen, &mut schema, time, early)).await;
    let dropped = schema.drop().await;
    if dropped.is_ok() {
        screen.say(&format!("\nThe schema {} is dropped again.", schema::SCHEMA));
    }
    played.and(dropped)?;
    story::next(&mut screen);
    Ok(())
}

fn database(config: &Config, connections: usize) -> Result<Database, Failed> {
    Database::new(&config.postgres, connections, Arc::new(Stats::new()))
        .map_err(|fault| Failed::Configuration(fault.into()))
}

/// Opens the shop, relays, consumes, and compares.
async fn play(
    config: &Config,
    broker: &MockBroker,
    screen: &mut Screen,
    schema: &mut OwnSchema,
    time: Duration,
    early: impl Future<Output = ()> + Unpin,
) -> Result<(), Failed> {
    let relays_to = database(config, supervisor::connections(config))?;
    let facts = supervisor::check_schema(config, &relays_to).await.map_err(|error| match error {
        StartError::Unavailable(error) => Failed::Unavailable(anyhow!(error)),
        StartError::Unfit(error) => Failed::Configuration(anyhow!(error)),
    })?;
    let ledger = SharedLedger::default();
    let reader = Reader::start(&broker.bootstrap_servers(), &order::TOPICS, ledger.clone())
        .map_err(|failure| anyhow!("{failure}"))?;

    let stats = Arc::new(Stats::new());
    let relay_stats = Arc::clone(&stats);
    let trading = async {
        ready(&stats).await?;
        trade(config, screen, &ledger, time, early).await
    };
    let relayed = relay_while(config, relays_to, &facts, relay_stats, trading).await;
    tokio::task::spawn_blocking(|| reader.finish()).await.context("reading to the end")?;
    relayed?;

    let unsure = ledger.lock().take_unsure();
    let committed = schema.committed(unsure).await?;
    let mut ledger = ledger.lock();
    ledger.committed(committed, Instant::now());
    let (verdict, figures) = (ledger.verdict(), ledger.figures());
    story::end(screen, &figures, &verdict, ledger.latency());
    if let Some(fault) = ledger.last_fault() {
        screen.say(&format!("  on the way, and survived: {fault}"));
    }
    match verdict.is_good() && verdict.written > 0 {
        true => Ok(()),
        false => Err(Failed::Failure(anyhow!("what arrived is not what was committed"))),
    }
}

/// Relays until `work` is done and everything in flight is settled.
async fn relay_while(
    config: &Config,
    database: Database,
    facts: &Facts,
    stats: Arc<Stats>,
    work: impl Future<Output = anyhow::Result<()>>,
) -> anyhow::Result<()> {
    let (done, asked) = oneshot::channel::<()>();
    let asked = async { _ = asked.await };
    let mut relay = Box::pin(supervisor::run(config, database, facts, stats, Until::Asked, asked));
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
    while stats.not_ready().is_some() {
        anyhow::ensure!(begun.elapsed() < READY, "the relay is not ready after {} s", READY.as_secs());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}

/// Opens the shop for a time, and waits until what it committed has arrived.
async fn trade(
    config: &Config,
    screen: &mut Screen,
    ledger: &SharedLedger,
    time: Duration,
    mut early: impl Future<Output = ()> + Unpin,
) -> anyhow::Result<()> {
    let shop = Shop::open(config.postgres.clone(), ledger.clone());
    let begun = Instant::now();
    let mut redraw = tokio::time::interval(screen.interval());
    let mut show = |doing: &str| {
        let figures = ledger.lock().figures();
        screen.show(&View { elapsed: begun.elapsed(), time, figures, doing });
    };
    while begun.elapsed() < time {
        tokio::select! {
            _ = redraw.tick() => show("Ctrl-C ends it early"),
            () = tokio::time::sleep(time.saturating_sub(begun.elapsed())) => {}
            () = &mut early => break,
        }
    }
    tokio::task::spawn_blocking(|| shop.close()).await.context("closing the shop")??;
    let closed = Instant::now();
    let mut again = Box::pin(run::asked_to_end());
    while !ledger.lock().is_drained() && closed.elapsed() < DRAIN {
        tokio::select! {
            _ = redraw.tick() => show("the shop is closed, the last events are on their way"),
            () = tokio::time::sleep(Duration::from_millis(10)) => {}
            () = &mut again => anyhow::bail!("asked again to end: what is on its way was not waited for"),
        }
    }
    show("done");
    Ok(())
}
