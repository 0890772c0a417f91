//! Creates reports about an outbox, once or repeatedly.

use super::local_relay;
use super::report::{Rates, Relays, Report};
use super::verdict::{Circumstances, verdict};
use crate::cli::exit::Failed;
use crate::cli::one_shot;
use crate::config::{Config, OnSent};
use crate::postgres::access::grants::STATUS_PRIVILEGES;
use crate::postgres::connection::connect::Database;
use crate::postgres::connection::pooler;
use crate::postgres::diagnose::status::{Counters, PostgresStatus};
use std::path::Path;
use std::time::{Duration, Instant};

/// Reports about one outbox, with what the next report needs from the last one.
pub(super) struct Monitor {
    config: Config,
    /// ` --config FILE`, for the commands in the report.
    config_argument: String,
    relay_name: String,
    database: Database,
    status: PostgresStatus,
    /// Whether there is a pooler. `None` until the schema was checked.
    checked: Option<bool>,
    counted: Option<Counters>,
}

impl Monitor {
    /// Does not connect yet.
    pub(super) fn new(config: Config, path: Option<&Path>) -> Result<Monitor, Failed> {
        let (relay_name, database) = one_shot::monitoring_database(&config, "status")?;
        let status = PostgresStatus::new(database.clone(), &config.outbox);
        let config_argument = path.map(|path| format!(" --config {}", path.display())).unwrap_or_default();
        Ok(Monitor { config, config_argument, relay_name, database, status, checked: None, counted: None })
    }

    /// The current report. The rates are measured since the last report or, if there is none, over `sample`.
    pub(super) async fn report(&mut self, sample: Option<Duration>) -> Result<Report, Failed> {
        let report = self.try_report(sample).await;
        if report.is_err() {
            // Another server may answer the next time.
            (self.checked, self.counted) = (None, None);
        }
        report
    }

    async fn try_report(&mut self, sample: Option<Duration>) -> Result<Report, Failed> {
        let pooled = match self.checked {
            Some(pooled) => pooled,
            None => self.check().await?,
        };
        if self.counted.is_none() && sample.is_some() {
            self.counted = Some(self.status.counters().await.map_err(one_shot::fault)?);
        }
        let begun = Instant::now();
        let status = self.status.read(&self.relay_name).await.map_err(one_shot::fault)?;
        if let Some(sample) = sample {
            tokio::time::sleep(sample.saturating_sub(begun.elapsed())).await;
        }
        let counted = self.status.counters().await.map_err(one_shot::fault)?;
        let deletes = self.config.outbox.on_sent == OnSent::Delete;
        let rates = self.counted.and_then(|earlier| Rates::between(&earlier, &counted, deletes));
        self.counted = Some(counted);
        let here = local_relay::request(self.config.admin.listen).await;
        let circumstances = Circumstances {
            relay_name: &self.relay_name,
            pooled,
            rates: rates.as_ref(),
            here: here.as_ref(),
            config: &self.config_argument,
        };
        let verdict = verdict(&status, &circumstances);
        let relays = Relays::new(&self.relay_name, pooled, &status.relays, here.clone());
        Ok(Report::new(&self.config, &status, relays, rates, verdict))
    }

    /// Checks the schema, and returns whether there is a pooler. Called once per server.
    async fn check(&mut self) -> Result<bool, Failed> {
        one_shot::allowed(&self.config, &self.database, STATUS_PRIVILEGES).await?;
        // This needs a second connection, which may not be available. That must not prevent the report.
        let pooled = pooler::is_in_transaction_mode(&self.database).await.unwrap_or(false);
        self.checked = Some(pooled);
        Ok(pooled)
    }
}
