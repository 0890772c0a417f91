//! `outbox-relay run`: the daemon.

use super::exit::Failed;
use super::reload::Reloading;
use super::{ConfigFile, block_on, log, systemd};
use crate::admin::Listening;
use crate::config::Config;
use crate::postgres::connection::connect::Database;
use crate::relay::backoff::Backoff;
use crate::relay::failure::Failure;
use crate::relay::health::stats::Stats;
use crate::relay::holds::prober::Waiting;
use crate::supervisor::{self, End, Ready, StartError, Until};
use clap::Args;
use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{oneshot, watch};

/// What a superuser is, and what to do instead.
pub(super) const MORE_THAN_NEEDED: &str = "who can read and change everything: make a role of its own with `outbox-relay \
                                           migrate --print-roles`, and put it into [postgres] url";

/// Relay events until SIGTERM.
#[derive(Debug, Args)]
#[command(after_help = "\
Claims unsent rows, publishes them, settles them, and deletes old ones; any number of relays may run on one table. \
If Postgres or Kafka is away it waits, and goes on by itself.

SIGTERM or SIGINT: claims nothing more, finishes what is in flight, settles, and exits 0 within [relay] \
shutdown_timeout. A second signal ends it at once.

SIGHUP reads the configuration again, checks it, and takes up limits, intervals, secrets and the log's level at once; what \
needs a restart is named in the log. A file that cannot be used changes nothing, and the log says why.

With [admin] listen (127.0.0.1:10187 unless set otherwise) it serves /metrics, /livez and /readyz. Under systemd it tells \
when it is ready, what it waits for, and that it stops; and it feeds the watchdog, as long as the cycle goes on.

Examples:
  outbox-relay run --config /etc/outbox-relay/config.toml
  outbox-relay run --config config.toml --once

Exit codes: 0 ended as asked, 1 failed, 2 usage, 69 (with --once) Postgres or Kafka cannot be reached, 78 the \
configuration or the schema has to be mended.")]
pub struct Run {
    #[command(flatten)]
    config: ConfigFile,
    /// Publish what is unsent now, then exit.
    #[arg(long)]
    once: bool,
    /// End as on SIGTERM when stdin is closed: for whoever starts a relay and must not leave it behind, however it ends
    /// itself.
    #[arg(long, hide = true)]
    while_stdin_is_open: bool,
}

impl Run {
    /// Runs it.
    pub fn run(self) -> Result<(), Failed> {
        let config = self.config.load()?;
        let filter = log::init(&config.log)?;
        let signals = if self.while_stdin_is_open { Signals::or_end_of_stdin } else { Signals::new };
        block_on(async {
            let signals = signals()?;
            let reloading = Reloading::new(self.config.path(), config, filter)?;
            relay(reloading, self.once, signals).await
        })?
    }
}

async fn relay(mut reloading: Reloading, once: bool, mut signals: Signals) -> Result<(), Failed> {
    let config = reloading.config().clone();
    supervisor::check_kafka(&config).map_err(|failure| unusable_kafka(&failure))?;
    let stats = Arc::new(Stats::new());
    let serving = open_admin(&config, once, &stats).await?;
    tokio::select! {
        done = start(&mut reloading, once, &stats, &mut signals) => done,
        never = serving => match never {},
        never = systemd::keep_status(&stats) => match never {},
        never = systemd::feed_watchdog(&stats, supervisor::longest_step(&config)) => match never {},
    }
}

/// Opens the port before anything is claimed, and answers on it from the beginning: a relay that waits for Postgres
/// is alive.
async fn open_admin(
    config: &Config,
    once: bool,
    stats: &Arc<Stats>,
) -> Result<impl Future<Output = Infallible> + use<>, Failed> {
    let listening = match config.admin.listen.filter(|_| !once) {
        Some(listen) => {
            let listening = Listening::open(listen).await.map_err(|error| Failed::Failure(error.into()))?;
            if let Ok(address) = listening.address() {
                tracing::info!("metrics and health at http://{address}/metrics, /livez and /readyz");
            }
            Some(listening)
        }
        None => None,
    };
    let stats = Arc::clone(stats);
    Ok(async {
        match listening {
            Some(listening) => listening.serve(stats).await,
            None => std::future::pending().await,
        }
    })
}

fn unusable_kafka(failure: &Failure) -> Failed {
    Failed::Configuration(anyhow::anyhow!("[kafka.properties] cannot be used: {failure}"))
}

async fn start(
    reloading: &mut Reloading,
    once: bool,
    stats: &Arc<Stats>,
    signals: &mut Signals,
) -> Result<(), Failed> {
    let config = reloading.config().clone();
    let database = Database::new(&config.postgres, supervisor::connections(&config), Arc::clone(stats))
        .map_err(|fault| Failed::Configuration(fault.into()))?;
    let Some(ready) = until_ready(reloading, &database, once, stats, signals).await? else { return Ok(()) };
    let config = reloading.config().clone();
    if ready.facts.is_superuser {
        tracing::warn!("the relay connects as a superuser, {MORE_THAN_NEEDED}");
    }
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"), table = %config.outbox.table, workers = config.relay.workers,
        postgres = ready.facts.server_version_num, "relaying"
    );
    systemd::ready(stats);
    let until = if once { Until::Drained } else { Until::Asked };
    let (ask, asked) = oneshot::channel::<()>();
    let asked = async { _ = asked.await };
    let (configs, reloads) = watch::channel(config.clone());
    let relaying =
        supervisor::run(&config, database.clone(), ready, Arc::clone(stats), until, asked, reloads);
    let mut relaying = Box::pin(relaying);
    let end = loop {
        tokio::select! {
            end = &mut relaying => break end,
            () = reloading.asked() => {
                if let Some(config) = reloading.reload(stats, true).await {
                    configs.send_replace(config);
                }
            }
            () = signals.next() => {
                stats.stop();
                systemd::stopping(stats, reloading.config().relay.shutdown_timeout);
                tracing::info!("asked to end: finishing what is in flight");
                _ = ask.send(());
                break tokio::select! {
                    end = &mut relaying => end,
                    () = signals.next() => {
                        tracing::warn!("asked again: ending at once, what is in flight may be sent again");
                        std::process::exit(1);
                    }
                };
            }
        }
    };
    ended(end)
}

/// Waits until the schema is valid, and applies reloads meanwhile. `None` after a signal.
async fn until_ready(
    reloading: &mut Reloading,
    database: &Database,
    once: bool,
    stats: &Arc<Stats>,
    signals: &mut Signals,
) -> Result<Option<Ready>, Failed> {
    let config = reloading.config().clone();
    let kafka = supervisor::kafka(&config, stats).map_err(|failure| unusable_kafka(&failure))?;
    let (facts, kafka_answers) = {
        let mut ready = pin!(async {
            tokio::try_join!(wait_for_schema(&config, database, once, stats), async {
                Ok(supervisor::reach_kafka(&kafka).await)
            })
        });
        loop {
            tokio::select! {
                ready = &mut ready => break ready?,
                () = signals.next() => {
                    stats.stop();
                    systemd::stopping(stats, Duration::ZERO);
                    return Ok(None);
                }
                () = reloading.asked() => {
                    if let Some(config) = reloading.reload(stats, false).await {
                        database.reconfigure(&config.postgres);
                        kafka.reconfigure(&config.kafka, &config.relay);
                    }
                }
            }
        }
    };
    Ok(Some(Ready { facts, kafka, kafka_answers }))
}

fn ended(end: End) -> Result<(), Failed> {
    match end {
        End::Asked => Ok(()),
        End::Drained(waiting) if waiting.is_empty() => Ok(()),
        End::Drained(Waiting { topics, keys, paused, .. }) => {
            let pauses = paused.total();
            eprintln!(
                "everything is published but the events of {topics} held topics, {keys} blocked keys and {pauses} pauses; \
                 `outbox-relay status` names them"
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
    stats: &Stats,
) -> Result<crate::postgres::schema::check::Facts, Failed> {
    let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(3), fastrand::Rng::new());
    let outage = crate::relay::health::outage::Outage::new("Postgres");
    loop {
        systemd::waiting();
        stats.beat();
        match supervisor::check_schema(config, database).await {
            Ok(facts) => {
                outage.worked(0);
                stats.postgres.answers();
                return Ok(facts);
            }
            Err(StartError::Unavailable(error)) if once => {
                return Err(Failed::Unavailable(anyhow::anyhow!(error)));
            }
            Err(StartError::Unavailable(error)) => {
                stats.postgres.fails(&error);
                outage.failed(0, &error, crate::relay::health::outage::POSTGRES_ADVICE);
                tokio::time::sleep(backoff.next_wait()).await;
            }
            Err(StartError::Unfit(error)) => {
                return Err(Failed::Configuration(anyhow::anyhow!(error)));
            }
        }
    }
}

/// SIGTERM and SIGINT. One listener for the whole life of the process, so that none is missed between two waits.
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    end_of_stdin: Option<oneshot::Receiver<()>>,
}

impl Signals {
    /// Listens from now on; a signal does not end the process by itself any more.
    pub fn new() -> Result<Signals, Failed> {
        let open =
            |kind| signal(kind).map_err(|error| anyhow::Error::new(error).context("listening to signals"));
        let (terminate, interrupt) = (open(SignalKind::terminate())?, open(SignalKind::interrupt())?);
        Ok(Signals { terminate, interrupt, end_of_stdin: None })
    }

    /// The end of stdin counts as one, too. It is read from now on, and what comes is thrown away.
    fn or_end_of_stdin() -> Result<Signals, Failed> {
        let (ended, end_of_stdin) = oneshot::channel();
        std::thread::spawn(move || {
            _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
            _ = ended.send(());
        });
        Ok(Signals { end_of_stdin: Some(end_of_stdin), ..Signals::new()? })
    }

    /// The next one, or one that came meanwhile.
    pub async fn next(&mut self) {
        let end_of_stdin = async {
            match &mut self.end_of_stdin {
                Some(ended) => _ = ended.await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
            () = end_of_stdin => self.end_of_stdin = None,
        }
    }
}
