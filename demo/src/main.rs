//! `outbox-demo`: a shop, the relay, a broker and a consumer in one process, and a comparison of both ends.
//!
//! `shop` is the application, `broker` is Kafka, `reader` is the consumer, and the relay between them is the real one.
//! `ledger` records what was committed and what arrived, and `verdict` compares the two. `play` is the order of events.

mod broker;
mod ledger;
mod order;
mod play;
mod reader;
mod schema;
mod screen;
mod shop;
mod story;
mod verdict;

use crate::broker::MockBroker;
use anyhow::anyhow;
use clap::Parser;
use outbox_relay::admin::Listening;
use outbox_relay::cli::failed::Failed;
use outbox_relay::cli::frame::block_on;
use outbox_relay::cli::log;
use outbox_relay::cli::run::Signals;
use outbox_relay::config::{self, Config};
use outbox_relay::postgres::connection::pool::Database;
use outbox_relay::relay::health::stats::Stats;
use play::Scene;
use schema::OwnSchema;
use screen::Screen;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

const PARTITIONS: i32 = 12;

/// Run a demo: a shop whose events reach Kafka.
#[derive(Debug, Parser)]
#[command(
    name = "outbox-demo",
    version,
    max_term_width = 100,
    after_help = "\
A shop inserts orders and their events in the same transactions. The relay publishes the events to a broker inside \
this process. A consumer reads them, and the demo compares what was committed with what arrived. It uses its own \
schema, outbox_demo, and drops \
it at the end.

`make demo` starts a private PostgreSQL server for it.

Exit codes: 0 every event arrived once and in order, 1 failure, 2 usage error, 69 PostgreSQL unreachable, 78 the schema \
outbox_demo cannot be created or belongs to something else."
)]
struct Demo {
    /// Database to use (required), such as postgres://user@localhost/app.
    #[arg(long, value_name = "URL")]
    postgres: Option<String>,
    /// How long the demo inserts orders.
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
}

fn main() -> ExitCode {
    log::abort_on_panic();
    match Demo::parse().run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failed) => failed.report(),
    }
}

impl Demo {
    fn run(self) -> Result<(), Failed> {
        let Some(url) = self.postgres else {
            return Err(Failed::Usage(
                "the demo needs a PostgreSQL database: `make demo` starts a private server, or pass\n  \
                 --postgres postgres://USER@HOST/DATABASE\nThe demo creates the schema outbox_demo and drops \
                 it at the end."
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
    // On a terminal, log lines would be written into the panel, which shows what the relay waits for. Otherwise, only the
    // connection pool is limited: it would warn about each connection that a restart of PostgreSQL closed.
    let level = if screen.is_terminal() { "off" } else { "warn,deadpool.postgres=error" };
    let settings = [
        ("POSTGRES__URL", url),
        ("POSTGRES__APPLICATION_NAME", "outbox-demo"),
        ("KAFKA__BOOTSTRAP_SERVERS", &broker.bootstrap_servers()),
        ("OUTBOX__TABLE", schema::OUTBOX),
        ("ADMIN__LISTEN", "127.0.0.1:0"),
        ("LOG__LEVEL", level),
    ];
    let settings = settings.map(|(name, value)| (format!("OUTBOX_RELAY__{name}"), value.to_owned()));
    config::load(None, settings.into_iter())
        // The user gave an argument, not an environment variable.
        .map_err(|findings| {
            let findings = findings.to_string();
            let shown = findings.replace("environment variable OUTBOX_RELAY__POSTGRES__URL", "--postgres");
            Failed::Usage(format!("the demo cannot start\n{shown}"))
        })
}

async fn demonstrate(
    config: Config,
    broker: &MockBroker,
    mut screen: Screen,
    time: Duration,
) -> Result<(), Failed> {
    let mut signals = Signals::new()?;
    // One connection holds the lock until the end, even if it breaks.
    let control = database(&config, 2)?;
    let connected = tokio::select! {
        connected = OwnSchema::connect(control) => connected?,
        () = signals.next() => return Ok(()),
    };
    let mut schema = connected.create(&config.outbox.table).await?;
    let admin = match config.admin.listen {
        Some(listen) => Listening::open(listen).ok(),
        None => None,
    };
    let page = admin.as_ref().and_then(|admin| admin.address().ok());
    story::begin(&mut screen, time, page);
    let scene = Scene { config: &config, broker, admin, screen: &mut screen, signals: &mut signals, time };
    let played = Box::pin(scene.play(&mut schema)).await;
    let dropped = schema.drop().await;
    if dropped.is_ok() {
        screen.say(&format!("\nThe schema {} has been dropped.", schema::SCHEMA));
    }
    played.and(dropped)?;
    story::next(&mut screen);
    Ok(())
}

fn database(config: &Config, connections: usize) -> Result<Database, Failed> {
    Database::new(&config.postgres, connections, Arc::new(Stats::new()))
        .map_err(|fault| Failed::Configuration(fault.into()))
}
