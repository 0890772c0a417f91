//! `outbox-relay run`: the daemon.

pub(crate) mod clusters;
pub(crate) mod recording;
pub(crate) mod reload;
pub(crate) mod systemd;

use super::exit::Failed;
use super::terminal::output::counted;
use super::{ConfigFile, block_on, log};
use crate::admin::{Listening, Observed};
use crate::config::Config;
use crate::supervisor::{self, End, Ready, StartError, Until};
use clap::Args;
use clusters::Clusters;
use postgres::connection::connect::Database;
use recording::Recording;
use relay::failure::Backoff;
use relay::failure::KafkaFailure;
use relay::health::availability::{Availability, POSTGRES_ADVICE, rounded};
use relay::health::stats::Stats;
use relay::holds::Waiting;
use reload::Reloading;
use std::convert::Infallible;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

/// The end of the warnings about a superuser.
pub(super) const MORE_THAN_NEEDED: &str = "which can read and change everything. Create a separate role with \
     `outbox-relay migrate --print-roles`, and set it in [postgres] url";

/// Run the relay.
#[derive(Debug, Args)]
#[command(after_help = "\
Claims unsent rows, publishes them, marks them as sent, and deletes old rows. You can run any number of relays on one \
table. If PostgreSQL or Kafka is unavailable, or a migration is pending, the relay waits and resumes by itself.

SIGTERM and SIGINT start a graceful shutdown: the relay claims no more rows, waits for the events in flight, \
settles them and exits with 0. If this takes longer than [relay] shutdown_timeout, it exits with 1. A second signal \
stops it immediately, also with 1.

SIGHUP reloads the configuration. Most limits and intervals, most secrets and the log level apply without a restart. \
The log names each changed setting that needs a restart. If the new file is invalid, the relay keeps the current \
configuration and logs the reason.

The relay serves a status page, /metrics, /livez and /readyz on [admin] listen (default: http://127.0.0.1:10187/). Under systemd, it reports \
when it is ready, what it is waiting for, and when it stops. It feeds the watchdog while it makes progress.

Examples:
  outbox-relay run --config /etc/outbox-relay/config.toml
  outbox-relay run --config config.toml --once

Exit codes: 0 success, 1 failure, 2 usage error, 69 PostgreSQL or Kafka unreachable (only with --once), 78 invalid \
configuration or schema, or missing privileges.")]
pub(crate) struct Run {
    #[command(flatten)]
    config: ConfigFile,
    /// Publish all unsent events, then exit.
    #[arg(long)]
    once: bool,
    /// Shut down as on SIGTERM when stdin is closed, so that the relay does not outlive the process that started it.
    #[arg(long, hide = true)]
    while_stdin_is_open: bool,
}

impl Run {
    pub(crate) fn run(self) -> Result<(), Failed> {
        let config = self.config.load()?;
        let filter = log::init(&config.log)?;
        let signals = if self.while_stdin_is_open { Signals::or_end_of_stdin } else { Signals::new };
        block_on(async {
            let signals = signals()?;
            let reloading = Reloading::new(self.config.path(), config, filter)?;
            Box::pin(relay(reloading, self.once, signals)).await
        })?
    }
}

async fn relay(mut reloading: Reloading, once: bool, mut signals: Signals) -> Result<(), Failed> {
    let config = reloading.config().clone();
    supervisor::check_kafka(&config).map_err(|failure| unusable_kafka(&failure))?;
    let stats = Arc::new(Stats::new());
    let observed = Observed {
        stats: Arc::clone(&stats),
        config: reloading.in_force(),
        config_file: reloading.path().map(Path::to_path_buf),
    };
    let serving = open_admin(&config, once, observed)?;
    tokio::select! {
        done = start(&mut reloading, once, &stats, &mut signals) => done,
        never = serving => match never {},
        never = systemd::keep_status(&stats) => match never {},
        never = systemd::feed_watchdog(&stats, supervisor::longest_step(&config)) => match never {},
    }
}

/// Opens the admin port before anything is claimed and serves it from the start, because a relay that waits for Postgres is
/// alive.
fn open_admin(
    config: &Config,
    once: bool,
    observed: Observed,
) -> Result<impl Future<Output = Infallible> + use<>, Failed> {
    let listening = match config.admin.listen.filter(|_| !once) {
        Some(listen) => {
            let listening = Listening::open(listen).map_err(|error| Failed::Failure(error.into()))?;
            if let Ok(address) = listening.address() {
                tracing::info!(
                    "serving metrics and health checks at http://{address}/metrics, /livez and /readyz, and the \
                     status page at http://{address}/"
                );
            }
            Some(listening)
        }
        None => None,
    };
    Ok(async {
        match listening {
            Some(listening) => listening.serve(observed).await,
            None => std::future::pending().await,
        }
    })
}

fn unusable_kafka(failure: &KafkaFailure) -> Failed {
    Failed::Configuration(anyhow::anyhow!("[kafka.properties] is invalid: {}", failure.error))
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
    let recording = Recording::new(&config, &database);
    let clusters = Clusters::new(&config, &database, stats);
    let ready = until_ready(reloading, &database, (&recording, &clusters), once, stats, signals).await?;
    let Some(ready) = ready else { return Ok(()) };
    let config = relayed(reloading.config(), once);
    log_start(&config, &ready);
    systemd::ready(stats);
    let until = if once { Until::Drained } else { Until::Requested };
    let (stop, stopped) = oneshot::channel::<()>();
    let stopped = async { _ = stopped.await };
    let (configs, reloads) = watch::channel(config.clone());
    let relaying =
        supervisor::run(&config, database.clone(), ready, Arc::clone(stats), until, stopped, reloads);
    let mut relaying = Box::pin(relaying);
    let mut recording = Box::pin(recording.keep_trying());
    let mut elsewhere = Box::pin(clusters.watch());
    let mut requested_at = None;
    let end = loop {
        tokio::select! {
            end = &mut relaying => break end,
            never = &mut recording => match never {},
            () = &mut elsewhere => {
                stats.stop();
                systemd::stopping(stats, reloading.config().relay.shutdown_timeout);
                _ = stop.send(());
                break drained(&mut relaying, signals).await;
            }
            () = reloading.requested() => {
                if let Some(config) = reloading.reload(stats, true).await {
                    configs.send_replace(relayed(&config, once));
                }
            }
            () = signals.next() => {
                stats.stop();
                systemd::stopping(stats, reloading.config().relay.shutdown_timeout);
                tracing::info!("shutdown requested, draining");
                requested_at = Some(Instant::now());
                _ = stop.send(());
                break drained(&mut relaying, signals).await;
            }
        }
    };
    clusters.result()?;
    log_end(&end, requested_at);
    ended(end)
}

/// Waits until the relay has drained. Another signal ends the process at once.
async fn drained(relaying: impl Future<Output = End>, signals: &mut Signals) -> End {
    tokio::select! {
        end = relaying => end,
        () = signals.next() => {
            tracing::warn!("signal received while draining, exiting now; events in flight may be redelivered");
            std::process::exit(1);
        }
    }
}

fn log_start(config: &Config, ready: &Ready) {
    if ready.facts.is_superuser {
        tracing::warn!(code = "superuser", "connected as a superuser, {MORE_THAN_NEEDED}");
    }
    if let Some(difference) = &ready.facts.difference {
        tracing::warn!(code = "schema_newer", "{difference}");
    }
    if ready.facts.has_topic && config.outbox.topic_allow.is_none() {
        tracing::warn!(
            code = "topic_allow_unset",
            "the outbox has the column topic, but [outbox] topic_allow is not set: events that name a topic are rejected"
        );
    }
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"), table = %config.outbox.table, workers = config.relay.workers,
        postgres = ready.facts.server_version_num, "relay started"
    );
}

/// Logs a regular end. Otherwise, the error with which the process ends is the last line.
fn log_end(end: &End, requested_at: Option<Instant>) {
    if matches!(end, End::Requested | End::Drained(_)) {
        let drain_seconds = requested_at.map(|at| rounded(at.elapsed()));
        tracing::info!(code = "relay_stopped", drain_seconds, "relay stopped");
    }
}

/// The settings of the relay. A relay that ends when the outbox is empty must not wait for further events.
fn relayed(config: &Config, once: bool) -> Config {
    let mut config = config.clone();
    if once {
        config.relay.flow_window = Duration::ZERO;
    }
    config
}

/// Waits until the schema is valid and applies reloads meanwhile. Returns `None` after a signal.
async fn until_ready(
    reloading: &mut Reloading,
    database: &Database,
    (recording, clusters): (&Recording<'_>, &Clusters),
    once: bool,
    stats: &Arc<Stats>,
    signals: &mut Signals,
) -> Result<Option<Ready>, Failed> {
    let config = reloading.config().clone();
    let kafka = supervisor::kafka(&config, stats).map_err(|failure| unusable_kafka(&failure))?;
    let (facts, kafka_answers) = {
        let mut ready = pin!(async {
            let schema = async {
                let facts = wait_for_schema(&config, database, once, stats).await?;
                Box::pin(recording.attempt()).await;
                Ok::<_, Failed>(facts)
            };
            let (facts, answers) =
                tokio::try_join!(schema, async { Ok(supervisor::reach_kafka(&kafka).await) })?;
            Ok::<_, Failed>((facts, clusters.begin(&kafka, answers).await?))
        });
        loop {
            tokio::select! {
                ready = &mut ready => break ready?,
                () = signals.next() => {
                    stats.stop();
                    systemd::stopping(stats, Duration::ZERO);
                    return Ok(None);
                }
                () = reloading.requested() => {
                    if let Some(config) = reloading.reload(stats, false).await {
                        database.reconfigure(&config.postgres);
                        kafka.reconfigure(&config.kafka, &config.limits());
                    }
                }
            }
        }
    };
    Ok(Some(Ready { facts, kafka, kafka_answers }))
}

fn ended(end: End) -> Result<(), Failed> {
    match end {
        End::Requested => Ok(()),
        End::Drained(waiting) if waiting.is_empty() => Ok(()),
        End::Drained(Waiting { topics, keys, paused, .. }) => {
            let count = |number: i64, what| counted(number.unsigned_abs(), what);
            eprintln!(
                "All other events have been published. Still waiting: {}, {}, {}. To list them, run: outbox-relay \
                 status",
                count(topics, "held topic"),
                count(keys, "blocked key"),
                count(paused.total(), "pause")
            );
            Ok(())
        }
        End::TooLate => Err(Failed::Failure(anyhow::anyhow!(
            "Some events in flight were not acknowledged within shutdown_timeout. They may be redelivered. If this \
             recurs, increase [relay] shutdown_timeout."
        ))),
        End::Unrecorded(rows) => Err(Failed::Failure(anyhow::anyhow!(
            "Kafka has acknowledged {} that could not be recorded as sent. They will be published again, with the same event \
             IDs. The log has the reason.",
            counted(rows as u64, "event")
        ))),
        End::Unavailable(error) => Err(Failed::Unavailable(anyhow::anyhow!(error))),
        End::Broken(task) => Err(Failed::Failure(anyhow::anyhow!(
            "{task} ended unexpectedly. This is a bug. Report it with the log."
        ))),
    }
}

/// How often a relay checks whether a pending migration was applied.
const SCHEMA_EVERY: Duration = Duration::from_secs(5);

/// Waits until Postgres answers and no migration is pending. Fails if the schema is not valid, unless the relay has waited for
/// a migration: privileges may follow it.
async fn wait_for_schema(
    config: &Config,
    database: &Database,
    once: bool,
    stats: &Stats,
) -> Result<postgres::schema::check::Facts, Failed> {
    let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(3), fastrand::Rng::new());
    let outage = Availability::new("postgres", "postgres_unavailable");
    let mut waits_for = None;
    loop {
        systemd::waiting();
        stats.beat();
        match supervisor::check_schema(config, database).await {
            Ok(facts) => {
                outage.worked(0);
                stats.postgres.answers();
                stats.schema.answers();
                return Ok(facts);
            }
            Err(error @ (StartError::Older(_) | StartError::Unfit(_)))
                if !once && (waits_for.is_some() || matches!(error, StartError::Older(_))) =>
            {
                outage.worked(0);
                stats.postgres.answers();
                stats.schema.fails(&error);
                let reason = stats.schema.fault();
                if waits_for != reason {
                    let text = reason.as_deref().unwrap_or_default();
                    tracing::warn!(code = "schema_older", "not started, waiting for the migration: {text}");
                    waits_for = reason;
                }
                tokio::time::sleep(SCHEMA_EVERY).await;
            }
            Err(StartError::Unavailable(error)) if once => {
                return Err(Failed::Unavailable(anyhow::anyhow!(error)));
            }
            Err(StartError::Unavailable(error)) => {
                stats.postgres.fails(&error);
                outage.failed(0, &error, POSTGRES_ADVICE);
                tokio::time::sleep(backoff.next_wait()).await;
            }
            Err(StartError::Older(error) | StartError::Unfit(error)) => {
                return Err(Failed::Configuration(anyhow::anyhow!(error)));
            }
        }
    }
}

/// SIGTERM and SIGINT. One listener lives as long as the process, so that no signal is missed between two waits.
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    end_of_stdin: Option<oneshot::Receiver<()>>,
}

impl Signals {
    /// Starts listening. From now on, the signals no longer end the process by themselves.
    pub fn new() -> Result<Signals, Failed> {
        let open = |kind| {
            signal(kind).map_err(|error| anyhow::Error::new(error).context("cannot listen for signals"))
        };
        let (terminate, interrupt) = (open(SignalKind::terminate())?, open(SignalKind::interrupt())?);
        Ok(Signals { terminate, interrupt, end_of_stdin: None })
    }

    /// Treats the end of stdin as a signal too. Its content is discarded.
    fn or_end_of_stdin() -> Result<Signals, Failed> {
        let (ended, end_of_stdin) = oneshot::channel();
        std::thread::spawn(move || {
            _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
            _ = ended.send(());
        });
        Ok(Signals { end_of_stdin: Some(end_of_stdin), ..Signals::new()? })
    }

    /// Waits for the next signal, including one that arrived since the last call.
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
