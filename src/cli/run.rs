//! `outbox-relay run`: the daemon.

use super::exit::Failed;
use super::{ConfigFile, block_on, log};
use crate::config::Config;
use crate::postgres::connect::Database;
use crate::relay::backoff::Backoff;
use crate::relay::stats::Stats;
use crate::supervisor::{self, End, Until};
use clap::Args;
use sd_notify::NotifyState;
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

/// Relay events until SIGTERM.
#[derive(Debug, Args)]
#[command(after_help = "\
Claims unsent rows, publishes them, settles them, and deletes old ones; any number of relays may run on one table. \
If Postgres or Kafka is away it waits, and goes on by itself.

SIGTERM or SIGINT: claims nothing more, finishes what is in flight, settles, and exits 0 within [relay] \
shutdown_timeout. A second signal ends it at once.

Exit codes: 0 ended as asked, 1 failed, 2 usage, 69 (with --once) Postgres or Kafka cannot be reached, 78 the \
configuration or the schema has to be mended.")]
pub struct Run {
    #[command(flatten)]
    config: ConfigFile,
    /// Publish what is unsent now, then exit.
    #[arg(long)]
    once: bool,
}

impl Run {
    /// Runs it.
    pub fn run(self) -> Result<(), Failed> {
        let config = self.config.load()?;
        log::init(&config.log)?;
        block_on(relay(config, self.once))?
    }
}

async fn relay(config: Config, once: bool) -> Result<(), Failed> {
    let stats = Arc::new(Stats::new());
    let database = Database::new(&config.postgres, supervisor::connections(&config), Arc::clone(&stats))
        .map_err(|fault| Failed::Configuration(fault.into()))?;
    let facts = tokio::select! {
        facts = wait_for_schema(&config, &database, once) => facts?,
        () = asked_to_end() => return Ok(()),
    };
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"), table = %config.outbox.table, workers = config.relay.workers,
        postgres = facts.server_version_num, "relaying"
    );
    notify(&[NotifyState::Ready, NotifyState::Status("relaying")]);
    let until = if once { Until::Drained } else { Until::Asked };
    let end = supervisor::run(&config, database, &facts, stats, until, stopping()).await;
    match end {
        End::Asked => Ok(()),
        End::Drained { held: 0 } => Ok(()),
        End::Drained { held } => {
            eprintln!(
                "everything is published but the events of {held} held topics; `outbox-relay status` names them"
            );
            Ok(())
        }
        End::TooLate => Err(Failed::Failure(anyhow::anyhow!(
            "not everything in flight was acknowledged within shutdown_timeout: what is not settled is sent again"
        ))),
        End::Unavailable(error) => Err(Failed::Unavailable(anyhow::anyhow!(error))),
        End::Broken(task) => Err(Failed::Failure(anyhow::anyhow!("{task} ended, which it never should"))),
    }
}

/// Waits for a Postgres that answers; a schema that does not fit ends the process.
async fn wait_for_schema(
    config: &Config,
    database: &Database,
    once: bool,
) -> Result<crate::postgres::check::Facts, Failed> {
    let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(3), fastrand::Rng::new());
    let outage = crate::relay::outage::Outage::new("Postgres");
    loop {
        match supervisor::check_schema(config, database).await {
            Ok(facts) => {
                outage.worked();
                return Ok(facts);
            }
            Err(supervisor::StartError::Unavailable(error)) if once => {
                return Err(Failed::Unavailable(anyhow::anyhow!(error)));
            }
            Err(supervisor::StartError::Unavailable(error)) => {
                outage.failed(&error, "The relay starts as soon as it works");
                let status = format!("waiting for Postgres: {error}");
                notify(&[NotifyState::Status(&status), NotifyState::ExtendTimeoutUsec(30_000_000)]);
                tokio::time::sleep(backoff.next_wait()).await;
            }
            Err(supervisor::StartError::Unfit(error)) => {
                return Err(Failed::Configuration(anyhow::anyhow!(error)));
            }
        }
    }
}

/// Tells systemd; without it nothing happens.
fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!("systemd cannot be told: {error}");
    }
}

/// The first signal asks for a drain; the second one ends the process at once.
async fn stopping() {
    asked_to_end().await;
    notify(&[NotifyState::Stopping, NotifyState::Status("finishing what is in flight")]);
    tracing::info!("asked to end: finishing what is in flight");
    tokio::task::spawn_local(async {
        asked_to_end().await;
        tracing::warn!("asked again: ending at once, what is in flight may be sent again");
        std::process::exit(1);
    });
}

/// SIGTERM or SIGINT.
pub(super) async fn asked_to_end() {
    let (Ok(mut terminate), Ok(mut interrupt)) =
        (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}
