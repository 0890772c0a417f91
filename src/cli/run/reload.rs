//! SIGHUP: reads the configuration again and applies the changes that a running relay can apply.

use crate::cli::frame::Failed;
use crate::cli::log::Filter;
use crate::cli::run::systemd;
use crate::config::{self, Change, Config, Effect, Findings};
use crate::supervisor;
use relay::health::stats::Stats;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

/// How long reading the files may take, in case a disk hangs.
const READ_WITHIN: Duration = Duration::from_secs(10);

pub(crate) struct Reloading {
    path: Option<PathBuf>,
    config: Config,
    in_force: watch::Sender<Config>,
    filter: Filter,
    hangups: Signal,
}

impl Reloading {
    /// `config` was read from the file at `path`. From now on, SIGHUP no longer ends the process.
    pub(crate) fn new(path: Option<PathBuf>, config: Config, filter: Filter) -> Result<Reloading, Failed> {
        let hangups = signal(SignalKind::hangup())
            .map_err(|error| anyhow::Error::new(error).context("cannot listen for signals"))?;
        let in_force = watch::Sender::new(config.clone());
        Ok(Reloading { path, config, in_force, filter, hangups })
    }

    pub(crate) fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// The configuration in force, now and after each reload.
    pub(crate) fn in_force(&self) -> watch::Receiver<Config> {
        self.in_force.subscribe()
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    pub(crate) async fn requested(&mut self) {
        if self.hangups.recv().await.is_none() {
            std::future::pending::<()>().await;
        }
    }

    /// Reads the file again and returns the new configuration, with the log level already applied. `None` if the file is
    /// invalid, which changes nothing. `ready` is whether the relay has reported that it is ready.
    pub(crate) async fn reload(&mut self, stats: &Stats, ready: bool) -> Option<Config> {
        if ready {
            systemd::reloading();
        }
        let read = timeout(READ_WITHIN, read(self.path.clone())).await;
        let read = read.unwrap_or_else(|_| Err(format!("the file could not be read within {READ_WITHIN:?}")));
        let applied = read.inspect_err(|why| log_rejected(why)).ok().map(|new| self.apply(&new));
        if ready {
            systemd::ready(stats);
        }
        applied
    }

    fn apply(&mut self, new: &Config) -> Config {
        for warning in new.warnings.iter() {
            tracing::warn!("{warning}");
        }
        let changes = config::changes(&self.config, new);
        self.config = self.config.reloaded(new);
        self.in_force.send_replace(self.config.clone());
        if let Err(error) = self.filter.set(&self.config.log.level) {
            tracing::error!("[log] level was not applied: {error}");
        }
        for change in &changes {
            log_change(change);
        }
        let changes = changes.len();
        let credentials = std::env::var_os("CREDENTIALS_DIRECTORY").map(PathBuf::from);
        let is_partial = credentials.is_some_and(|folder| config::are_of_systemd(&folder));
        let except = if is_partial { ", except for systemd credentials, which need a restart" } else { "" };
        tracing::info!(changes, "configuration reloaded{except}");
        self.config.clone()
    }
}

/// Reads and validates the configuration as at start.
async fn read(path: Option<PathBuf>) -> Result<Config, String> {
    let read = move || {
        let config = config::load(path.as_deref(), config::environment())
            .map_err(|findings: Findings| findings.to_string())?;
        supervisor::check_kafka(&config)
            .map_err(|failure| format!("[kafka.properties] is invalid: {}", failure.error))?;
        Ok(config)
    };
    spawn_blocking(read).await.unwrap_or_else(|error| Err(error.to_string()))
}

fn log_rejected(why: &str) {
    tracing::error!(
        code = "reload_rejected",
        "reload rejected, keeping the current configuration: {why}\nFix the configuration, validate it with \
         `outbox-relay check-config`, and reload again"
    );
}

fn log_change(Change { section, key, effect }: &Change) {
    match effect {
        Effect::Now => tracing::info!("[{section}] {key} changed, applied now"),
        Effect::NextConnection => {
            tracing::info!("[{section}] {key} changed, applies to the next connection");
        }
        Effect::Restart => {
            tracing::warn!(code = "restart_needed", "[{section}] {key} changed, applies after a restart");
        }
    }
}
