//! `outbox-relay run`: the daemon. [`Daemon`] has one method for each phase: open the admin port, wait for the servers, relay,
//! drain.

pub(crate) mod recorded;
mod systemd;

use super::failed::Failed;
use super::frame::{self, ConfigFile, block_on};
use super::log::{self, Filter};
use super::output::{self, counted};
use crate::admin::{Listening, Observed};
use crate::config::{self, Change, Config, Effect};
use crate::supervisor::{self, End, Ready, StartError, Until};
use anyhow::Context;
use clap::Args;
use postgres::connection::pool::Database;
use postgres::schema::check::Facts;
use recorded::Recorded;
use relay::failure::Backoff;
use relay::health::availability::{Availability, POSTGRES_ADVICE, rounded};
use relay::health::stats::Stats;
use relay::holds::Waiting;
use std::convert::Infallible;
use std::hint::black_box;
use std::path::PathBuf;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Notify, oneshot, watch};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, timeout};

/// How often a relay checks whether a pending migration was applied.
const SCHEMA_EVERY: Duration = Duration::from_secs(5);
/// How long reading the files of a reload may take, in case a disk hangs.
const READ_WITHIN: Duration = Duration::from_secs(10);
/// The end of the warnings about a superuser.
pub(super) const MORE_THAN_NEEDED: &str = "which can read and change everything. Create a separate role with \
     `outbox-relay migrate --print-roles`, and set it in [postgres] url";

#[derive(Debug, Args)]
#[command(after_help = include_str!("help/run.txt").trim_ascii_end())]
pub(crate) struct Run {
    /// Publish all unsent events except those that are held, blocked or paused, then exit.
    #[arg(long)]
    once: bool,
    /// Shut down as on SIGTERM when stdin is closed, so that the relay does not outlive the process that started it.
    #[arg(long, hide = true)]
    while_stdin_is_open: bool,
}

impl Run {
    pub(crate) fn run(self, file: &ConfigFile) -> Result<(), Failed> {
        keep_freed_memory();
        let config = file.read()?;
        let filter = log::init(&config.log)?;
        file.announced();
        frame::print_warnings(&config);
        let signals = if self.while_stdin_is_open { Signals::or_end_of_stdin } else { Signals::new };
        block_on(async {
            let daemon = Daemon {
                once: self.once,
                signals: signals()?,
                reloading: Reloading::new(file.path(), config, filter)?,
                stats: Arc::new(Stats::new()),
            };
            Box::pin(daemon.run()).await
        })?
    }
}

struct Daemon {
    /// Whether it ends when everything is published.
    once: bool,
    signals: Signals,
    reloading: Reloading,
    stats: Arc<Stats>,
}

impl Daemon {
    async fn run(mut self) -> Result<(), Failed> {
        let config = self.reloading.config();
        config.cluster()?.check_settings()?;
        let serving = self.open_admin(&config)?;
        let (stats, in_force) = (Arc::clone(&self.stats), self.reloading.in_force.subscribe());
        tokio::select! {
            done = self.start_and_relay(&config) => done,
            never = serving => match never {},
            never = systemd::keep_status(&stats) => match never {},
            never = systemd::feed_watchdog(&stats, || supervisor::longest_step(&in_force.borrow())) => match never {},
        }
    }

    /// Opens the admin port before anything is claimed and serves it from the start, because a relay that waits for Postgres is
    /// alive.
    fn open_admin(&self, config: &Config) -> Result<impl Future<Output = Infallible> + use<>, Failed> {
        let listen = config.admin.listen.filter(|_| !self.once);
        let listening = listen.map(Listening::open).transpose();
        let listening = listening.map_err(|error| Failed::Failure(error.into()))?;
        if let Some(Ok(address)) = listening.as_ref().map(Listening::address) {
            tracing::info!(
                "serving metrics and health checks at http://{address}/metrics, /livez and /readyz, and the status page at \
                 http://{address}/"
            );
        }
        let observed = Observed {
            stats: Arc::clone(&self.stats),
            config: self.reloading.in_force.subscribe(),
            config_file: self.reloading.path.clone(),
        };
        Ok(async {
            match listening {
                Some(listening) => listening.serve(observed).await,
                None => std::future::pending().await,
            }
        })
    }

    async fn start_and_relay(&mut self, config: &Config) -> Result<(), Failed> {
        let database =
            Database::new(&config.postgres, supervisor::connections(config), Arc::clone(&self.stats))
                .map_err(|fault| Failed::Configuration(fault.into()))?;
        let recorded = Recorded::new(config, &database, &self.stats);
        let Some(ready) = self.until_ready(config, database, &recorded).await? else {
            self.report_stopped();
            return Ok(());
        };
        let config = self.reloading.config();
        log_start(&config, &ready);
        systemd::ready(&self.stats);
        self.relay(&config, ready, &recorded).await
    }

    /// Waits until the servers answer and the schema is valid, and applies reloads meanwhile. Returns `None` after a signal.
    async fn until_ready(
        &mut self,
        config: &Config,
        database: Database,
        recorded: &Rc<Recorded>,
    ) -> Result<Option<Ready>, Failed> {
        let (stats, once) = (Arc::clone(&self.stats), self.once);
        let kafka = config.cluster()?.counting_into(Arc::clone(&stats));
        let checked = Notify::new();
        let (facts, kafka_answers) = {
            let mut ready = pin!(async {
                let schema = async {
                    let facts = wait_for_schema(config, &database, once, &stats).await?;
                    Box::pin(recorded.attempt()).await;
                    checked.notify_one();
                    Ok::<_, Failed>(facts)
                };
                let answer = async {
                    Ok::<_, Failed>(supervisor::reach_kafka(&kafka, &stats, checked.notified()).await)
                };
                let (facts, answers) = tokio::try_join!(schema, answer)?;
                let answers = recorded.begin(&kafka, answers).await?;
                stats.postgres.answers();
                stats.schema.answers();
                Ok::<_, Failed>((facts, answers))
            });
            loop {
                tokio::select! {
                    ready = &mut ready => break ready?,
                    () = self.signals.next() => {
                        stats.stop();
                        systemd::stopping(&stats, Duration::ZERO);
                        return Ok(None);
                    }
                    () = self.reloading.requested() => {
                        if let Some(config) = self.reloading.reload(&stats, false).await {
                            database.reconfigure(&config.postgres);
                            kafka.reconfigure(&config.kafka, &config.limits());
                        }
                    }
                }
            }
        };
        Ok(Some(Ready { database, facts, kafka, kafka_answers, stats }))
    }

    /// Relays until a signal, or until everything is published, and applies reloads meanwhile.
    async fn relay(&mut self, config: &Config, ready: Ready, recorded: &Recorded) -> Result<(), Failed> {
        let until = if self.once { Until::Drained } else { Until::Requested };
        let (stop, stopped) = oneshot::channel::<()>();
        let stopped = async { _ = stopped.await };
        let reloads = self.reloading.in_force.subscribe();
        let mut relaying = Box::pin(supervisor::run(config, ready, until, stopped, reloads));
        let mut recording = Box::pin(recorded.keep_trying());
        let mut elsewhere = Box::pin(recorded.watch());
        let requested_at = loop {
            tokio::select! {
                end = &mut relaying => {
                    recorded.result()?;
                    return ended(end, None);
                }
                never = &mut recording => match never {},
                () = &mut elsewhere => break None,
                () = self.reloading.requested() => drop(self.reloading.reload(&self.stats, true).await),
                () = self.signals.next() => {
                    tracing::info!("shutdown requested, draining");
                    break Some(Instant::now());
                }
            }
        };
        self.stats.stop();
        systemd::stopping(&self.stats, self.reloading.config().relay.shutdown_timeout);
        _ = stop.send(());
        let end = tokio::select! {
            end = relaying => end,
            () = self.signals.next() => {
                tracing::warn!("signal received while draining, exiting now; events in flight may be redelivered");
                std::process::exit(1);
            }
        };
        recorded.result()?;
        if matches!(end, End::Requested) {
            self.report_stopped();
        }
        ended(end, requested_at)
    }

    /// Says that `run --once` ended before everything may have been published.
    fn report_stopped(&self) {
        if self.once {
            output::note_with_priority(
                6,
                "Stopped on request. Events that were not published remain in the outbox.",
            );
        }
    }
}

/// Waits until Postgres answers and no migration is pending, which the caller then records. Fails if the schema is not valid,
/// unless the relay has waited for a migration: privileges may follow it.
async fn wait_for_schema(
    config: &Config,
    database: &Database,
    once: bool,
    stats: &Stats,
) -> Result<Facts, Failed> {
    let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(3), fastrand::Rng::new());
    let outage = Availability::new("postgres", "postgres_unavailable");
    let mut waits_for = None;
    loop {
        systemd::waiting(supervisor::longest_attempt(config));
        stats.beat();
        match supervisor::check_schema(config, database, None).await {
            Ok(facts) => {
                outage.worked(0);
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
                sleep(SCHEMA_EVERY).await;
            }
            Err(StartError::Unavailable(error)) if !once => {
                stats.postgres.fails(&error);
                outage.failed(0, &error, POSTGRES_ADVICE);
                sleep(backoff.next_wait()).await;
            }
            Err(error) => return Err(error.into()),
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
fn ended(end: End, requested_at: Option<Instant>) -> Result<(), Failed> {
    if matches!(end, End::Requested | End::Drained(_)) {
        let drain_seconds = requested_at.map(|at| rounded(at.elapsed()));
        tracing::info!(code = "relay_stopped", drain_seconds, "relay stopped");
    }
    match end {
        End::Requested => Ok(()),
        End::Drained(waiting) if waiting.is_empty() => Ok(()),
        End::Drained(Waiting { topics, keys, paused, .. }) => {
            let count = |number: i64, what| counted(number.unsigned_abs(), what);
            let waiting = format!(
                "All other events have been published. Still waiting: {}, {}, {}. To list them, run: outbox-relay \
                 status",
                count(topics, "held topic"),
                count(keys, "blocked key"),
                count(paused.total(), "pause")
            );
            output::note_with_priority(6, &waiting);
            Ok(())
        }
        End::TooLate => Err(Failed::failure(
            "Some events in flight were not acknowledged within shutdown_timeout. They may be redelivered. If this \
             recurs, increase [relay] shutdown_timeout.",
        )),
        End::Unrecorded(rows) => Err(Failed::failure(format!(
            "Kafka has acknowledged {} that could not be recorded as sent. They will be published again, with the same event \
             IDs. The log has the reason.",
            counted(rows as u64, "event")
        ))),
        End::Unavailable(error) => Err(Failed::unavailable(error)),
        End::Stuck(error) => Err(Failed::failure(format!(
            "No event was recorded as sent for the publish_timeout: {error}. The events remain in the outbox. The log has the fix."
        ))),
        End::Broken(task) => {
            Err(Failed::failure(format!("{task} ended unexpectedly. This is a bug. Report it with the log.")))
        }
    }
}

/// The configuration, which SIGHUP reads again. A running relay can apply only some of the changes.
struct Reloading {
    path: Option<PathBuf>,
    /// The configuration in force, now and after each reload.
    in_force: watch::Sender<Config>,
    filter: Filter,
    hangups: Signal,
}

impl Reloading {
    /// `config` was read from the file at `path`. From now on, SIGHUP no longer ends the process.
    fn new(path: Option<PathBuf>, config: Config, filter: Filter) -> Result<Reloading, Failed> {
        let hangups = listen(SignalKind::hangup())?;
        Ok(Reloading { path, in_force: watch::Sender::new(config), filter, hangups })
    }

    fn config(&self) -> Config {
        self.in_force.borrow().clone()
    }

    async fn requested(&mut self) {
        if self.hangups.recv().await.is_none() {
            std::future::pending::<()>().await;
        }
    }

    /// Reads the file again and returns the new configuration, with the log level already applied. `None` if the file is
    /// invalid, which changes nothing. `ready` is whether the relay has reported that it is ready.
    async fn reload(&mut self, stats: &Stats, ready: bool) -> Option<Config> {
        if ready {
            systemd::reloading();
        }
        let read = timeout(READ_WITHIN, read_again(self.path.clone(), self.config())).await;
        let read = read.unwrap_or_else(|_| Err(format!("the file could not be read within {READ_WITHIN:?}")));
        let applied = read.inspect_err(|why| log_rejected(why)).ok().map(|new| self.apply(&new));
        if ready {
            systemd::ready(stats);
        }
        applied
    }

    fn apply(&mut self, new: &Config) -> Config {
        new.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
        let old = self.config();
        let config = old.reloaded(new);
        self.in_force.send_replace(config.clone());
        if let Err(error) = self.filter.set(&config.log.level) {
            tracing::error!("[log] level was not applied: {error}");
        }
        let changes = config::changes(&old, new);
        for Change { section, key, effect } in &changes {
            match effect {
                Effect::Now => tracing::info!("[{section}] {key} changed, applied now"),
                Effect::NextConnection => {
                    tracing::info!("[{section}] {key} changed, applies to the next connection");
                }
                Effect::Restart => {
                    tracing::warn!(
                        code = "restart_needed",
                        "[{section}] {key} changed, applies after a restart"
                    );
                }
            }
        }
        let changes = changes.len();
        let credentials = std::env::var_os("CREDENTIALS_DIRECTORY").map(PathBuf::from);
        let is_partial = credentials.is_some_and(|folder| config::are_of_systemd(&folder));
        let except = if is_partial { ", except for systemd credentials, which need a restart" } else { "" };
        tracing::info!(changes, "configuration reloaded{except}");
        config
    }
}

/// Reads and validates the configuration as at start, and with the settings of `old` that need a restart.
async fn read_again(path: Option<PathBuf>, old: Config) -> Result<Config, String> {
    let read = move || {
        let config =
            config::load(path.as_deref(), config::environment()).map_err(|findings| findings.to_string())?;
        let checked = config.cluster().and_then(|cluster| cluster.check_settings());
        checked.map_err(|failure| Failed::from(failure).to_string())?;
        match old.reloaded(&config).conflict().filter(|_| old.conflict().is_none()) {
            Some(conflict) => Err(format!(
                "some changed settings apply only after a restart. Until then, {conflict}. Restart the relay to apply all of them"
            )),
            None => Ok(config),
        }
    };
    spawn_blocking(read).await.unwrap_or_else(|error| Err(error.to_string()))
}

/// Lets glibc keep 1 MiB of freed memory for each thread instead of 128 KiB: it raises its limits once a large block is freed (mallopt(3),
/// `M_MMAP_THRESHOLD`). librdkafka allocates and frees more than that for a request. Returning it to the kernel and taking it again each time
/// costs a fifth of the relay's CPU at 1,000 events/s.
fn keep_freed_memory() {
    drop(black_box(vec![0_u8; 512 << 10]));
}

fn log_rejected(why: &str) {
    tracing::error!(
        code = "reload_rejected",
        "reload rejected, keeping the current configuration: {why}\nFix the configuration, validate it with \
         `outbox-relay check-config`, and reload again"
    );
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
        let (terminate, interrupt) = (listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?);
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

fn listen(kind: SignalKind) -> Result<Signal, Failed> {
    Ok(signal(kind).context("cannot listen for signals")?)
}
