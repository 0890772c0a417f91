//! `outbox-relay demo`: a shop, the relay, a broker and a consumer in one process, and what came of it.
//!
//! [`shop`] is the application, [`reader`] the consumer, the relay between them is the real one. [`ledger`] notes what
//! was committed and what arrived, and [`verdict`] compares the two. [`play`] is the order of events.

mod ledger;
mod order;
mod play;
mod reader;
mod schema;
mod screen;
mod shop;
mod story;
mod verdict;

use super::exit::Failed;
use super::run::Signals;
use super::{block_on, log};
use crate::config::{self, Config};
use crate::kafka::mock::MockBroker;
use crate::postgres::connect::Database;
use crate::relay::stats::Stats;
use anyhow::anyhow;
use clap::Args;
use play::Scene;
use schema::OwnSchema;
use screen::Screen;
use std::sync::Arc;
use std::time::Duration;

const PARTITIONS: i32 = 12;

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
    let mut signals = Signals::new()?;
    let control = database(&config, 1)?;
    let connected = tokio::select! {
        connected = OwnSchema::connect(control) => connected?,
        () = signals.next() => return Ok(()),
    };
    let mut schema = connected.create(&config.outbox.table).await?;
    story::begin(&mut screen, time);
    let scene = Scene { config: &config, broker, screen: &mut screen, signals: &mut signals, time };
    let played = Box::pin(scene.play(&mut schema)).await;
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
