//! The state of an outbox and its relays: one [`Monitor`] creates reports, once or repeatedly. `outbox-relay status` prints a
//! report as a screen or as JSON, and the status page shows it as HTML.

pub(crate) mod report;
pub(crate) mod verdict;

use crate::config::{Config, ConnectionError, OnSent};
use crate::supervisor::{self, StartError};
use postgres::access::grants::STATUS_PRIVILEGES;
use postgres::connection::pool::{Database, has_transaction_pooler, monitoring_settings};
use postgres::diagnose::status::{Counters, LaneStatus, PostgresStatus};
use relay::failure::PostgresFault;
use relay::health::stats::Stats;
use report::{LocalRelay, Rates, Reaper, Relays, Report};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use verdict::{Circumstances, verdict};

/// Reports about one outbox, with what the next report needs from the last one.
pub(crate) struct Monitor {
    config: Config,
    /// ` --config FILE`, for the commands in the report.
    config_argument: String,
    relay_name: String,
    database: Database,
    status: PostgresStatus,
    /// Whether there is a pooler. `None` until the schema was checked.
    checked: Option<bool>,
    counted: Option<Counters>,
    /// How the schema differs from that of this version.
    difference: Option<String>,
}

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MonitorError {
    /// The connection settings cannot be used.
    #[error(transparent)]
    Settings(#[from] ConnectionError),
    /// Postgres cannot be reached, the schema is not valid, or a privilege is missing.
    #[error(transparent)]
    Check(#[from] StartError),
    /// A statement failed.
    #[error(transparent)]
    Read(#[from] PostgresFault),
}

impl Monitor {
    /// Does not connect yet. The configuration was read from the file at `path`. Connections are named after the relay's
    /// and `purpose`. `statement_timeout` replaces the timeout of every command.
    pub(crate) fn new(
        config: Config,
        path: Option<&Path>,
        purpose: &str,
        statement_timeout: Option<Duration>,
    ) -> Result<Monitor, MonitorError> {
        let (relay_name, settings) = monitoring_settings(&config.postgres, purpose)?;
        let database = Database::new(&settings, 2, Arc::new(Stats::new()))?;
        let status = PostgresStatus::new(
            database.clone(),
            &config.outbox.table,
            &(&config.outbox).into(),
            config.outbox.on_sent,
            statement_timeout,
        );
        let config_argument = path.map(|path| format!(" --config {}", path.display())).unwrap_or_default();
        let (checked, counted, difference) = (None, None, None);
        Ok(Monitor { config, config_argument, relay_name, database, status, checked, counted, difference })
    }

    /// How the schema differs from that of this version. Returns it once.
    pub(crate) fn take_difference(&mut self) -> Option<String> {
        self.difference.take()
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// The current report. The rates are measured since the last report or, if there is none, over `sample`. `here` is the
    /// relay on this host, if it answers.
    pub(crate) async fn report(
        &mut self,
        sample: Option<Duration>,
        here: impl Future<Output = Option<LocalRelay>>,
    ) -> Result<Report, MonitorError> {
        let report = self.try_report(sample, here).await;
        if report.is_err() {
            // Another server may answer the next time.
            (self.checked, self.counted) = (None, None);
        }
        report
    }

    /// The lanes with unsent rows.
    pub(crate) async fn lanes(&self) -> Result<Vec<LaneStatus>, MonitorError> {
        Ok(self.status.lanes().await?)
    }

    async fn try_report(
        &mut self,
        sample: Option<Duration>,
        here: impl Future<Output = Option<LocalRelay>>,
    ) -> Result<Report, MonitorError> {
        let pooled = match self.checked {
            Some(pooled) => pooled,
            None => self.check().await?,
        };
        if self.counted.is_none() && sample.is_some() {
            self.counted = Some(self.status.counters().await?);
        }
        let begun = Instant::now();
        let status = self.status.read(&self.relay_name).await?;
        if let Some(sample) = sample {
            tokio::time::sleep(sample.saturating_sub(begun.elapsed())).await;
        }
        let counted = self.status.counters().await?;
        let deletes = self.config.outbox.on_sent == OnSent::Delete;
        let rates = self.counted.and_then(|earlier| Rates::between(&earlier, &counted, deletes));
        self.counted = Some(counted);
        let here = here.await;
        let circumstances = Circumstances {
            relay_name: &self.relay_name,
            pooled,
            rates: rates.as_ref(),
            here: here.as_ref(),
            not_reaped: Reaper::not_reaped(&self.config, &status).filter(|_| self.config.reaper.enabled),
            config: &self.config_argument,
        };
        let verdict = verdict(&status, &circumstances);
        let relays = Relays::new(&self.relay_name, pooled, &status.relays, here.clone());
        Ok(Report::new(&self.config, &status, relays, rates, verdict))
    }

    /// Checks the schema, and returns whether there is a pooler. Called once per server.
    async fn check(&mut self) -> Result<bool, MonitorError> {
        let facts = supervisor::check_schema_for(&self.config, &self.database, STATUS_PRIVILEGES).await?;
        self.difference.clone_from(&facts.difference);
        self.status.set_topics(&facts.topics(&self.config.outbox));
        // This needs a second connection, which may not be available. That must not prevent the report.
        let pooled = has_transaction_pooler(&self.database).await.unwrap_or(false);
        self.checked = Some(pooled);
        Ok(pooled)
    }
}
