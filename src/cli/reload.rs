//! SIGHUP: the configuration is read again, and a running relay takes up what it can of it.

use super::exit::Failed;
use super::log::Filter;
use super::systemd;
use crate::config::{self, Change, Config, Effect, Findings};
use crate::kafka::properties::check;
use crate::relay::health::stats::Stats;
use crate::supervisor;
use std::path::PathBuf;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

/// Files are read; on a disk that hangs the relay goes on as it is.
const READ_WITHIN: Duration = Duration::from_secs(10);

/// The configuration that holds, and how it becomes another one.
pub struct Reloading {
    path: Option<PathBuf>,
    config: Config,
    filter: Filter,
    hangups: Signal,
}

impl Reloading {
    /// Of this file, from which `config` was read. Listens from now on: SIGHUP does not end the process any more.
    pub fn new(path: Option<PathBuf>, config: Config, filter: Filter) -> Result<Reloading, Failed> {
        let hangups = signal(SignalKind::hangup())
            .map_err(|error| anyhow::Error::new(error).context("listening to signals"))?;
        Ok(Reloading { path, config, filter, hangups })
    }

    /// What holds now.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Waits for SIGHUP.
    pub async fn asked(&mut self) {
        if self.hangups.recv().await.is_none() {
            std::future::pending::<()>().await;
        }
    }

    /// Reads the file again. `None` if it cannot be used, which changes nothing; else what holds from now on, which the log
    /// has taken up already. `ready`: systemd takes the relay for started.
    pub async fn reload(&mut self, stats: &Stats, ready: bool) -> Option<Config> {
        if ready {
            systemd::reloading();
        }
        let taken_up = match timeout(READ_WITHIN, read(self.path.clone())).await {
            Ok(Ok(new)) => Some(self.take_up(&new)),
            Ok(Err(why)) => {
                refuse(&why);
                None
            }
            Err(_) => {
                refuse(&format!("the file could not be read within {READ_WITHIN:?}"));
                None
            }
        };
        if ready {
            systemd::ready(stats);
        }
        taken_up
    }

    fn take_up(&mut self, new: &Config) -> Config {
        for warning in &new.warnings {
            tracing::warn!("{warning}");
        }
        let changes = config::changes(&self.config, new);
        self.config = self.config.reloaded(new);
        if let Err(error) = self.filter.set(&self.config.log.level) {
            tracing::error!("[log] level was not applied: {error}");
        }
        for change in &changes {
            tell(change);
        }
        let changes = changes.len();
        let credentials = std::env::var_os("CREDENTIALS_DIRECTORY").map(PathBuf::from);
        if credentials.is_some_and(|folder| config::are_of_systemd(&folder)) {
            tracing::info!(
                changes,
                "configuration reloaded, except for systemd credentials, which need a restart"
            );
        } else {
            tracing::info!(changes, "configuration reloaded");
        }
        self.config.clone()
    }
}

/// Everything is checked that is checked at start; a secret's file, for instance, has to be there.
async fn read(path: Option<PathBuf>) -> Result<Config, String> {
    let read = move || {
        let config = config::load(path.as_deref(), config::environment(), check)
            .map_err(|findings: Findings| findings.to_string())?;
        supervisor::check_kafka(&config)
            .map_err(|failure| format!("[kafka.properties] is invalid: {failure}"))?;
        Ok(config)
    };
    spawn_blocking(read).await.unwrap_or_else(|error| Err(error.to_string()))
}

fn refuse(why: &str) {
    tracing::error!(
        "reload rejected, keeping the current configuration: {why}\nFix the configuration, validate it with \
         `outbox-relay check-config`, and reload again"
    );
}

fn tell(Change { section, key, effect }: &Change) {
    match effect {
        Effect::Now => tracing::info!("[{section}] {key} changed, applied now"),
        Effect::NextConnection => {
            tracing::info!("[{section}] {key} changed, applies to the next connection");
        }
        Effect::Restart => tracing::warn!("[{section}] {key} changed, applies after a restart"),
    }
}
