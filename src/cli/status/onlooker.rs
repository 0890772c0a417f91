//! Looks at an outbox, once or again and again.

use super::here;
use super::report::{Rates, Relays, Report};
use super::verdict::{Circumstances, verdict};
use crate::cli::exit::Failed;
use crate::cli::one_shot;
use crate::config::{Config, OnSent};
use crate::postgres::access::grants::STATUS_RIGHTS;
use crate::postgres::connection::connect::Database;
use crate::postgres::connection::pooler;
use crate::postgres::diagnose::status::{Counters, PostgresStatus};
use std::path::Path;
use std::time::{Duration, Instant};

/// Looks at one outbox, and remembers of the last look what the next one needs.
pub(super) struct Onlooker {
    config: Config,
    /// ` --config FILE`, for the commands that it names.
    config_argument: String,
    relay_name: String,
    database: Database,
    status: PostgresStatus,
    /// The schema was found to fit, and whether a pooler stands in between.
    checked: Option<bool>,
    counted: Option<Counters>,
}

impl Onlooker {
    /// Connects to nothing yet.
    pub(super) fn new(config: Config, path: Option<&Path>) -> Result<Onlooker, Failed> {
        let (relay_name, database) = one_shot::onlooker(&config, "status")?;
        let status = PostgresStatus::new(database.clone(), &config.outbox);
        let config_argument = path.map(|path| format!(" --config {}", path.display())).unwrap_or_default();
        Ok(Onlooker { config, config_argument, relay_name, database, status, checked: None, counted: None })
    }

    /// How it stands now. The rates are those since the last look, or over `sample`, if there was none.
    pub(super) async fn look(&mut self, sample: Option<Duration>) -> Result<Report, Failed> {
        let looked = self.try_look(sample).await;
        if looked.is_err() {
            // Another server may answer the next time.
            (self.checked, self.counted) = (None, None);
        }
        looked
    }

    async fn try_look(&mut self, sample: Option<Duration>) -> Result<Report, Failed> {
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
        let here = here::ask(self.config.admin.listen).await;
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

    /// Whether the schema fits, and a pooler stands in between; asked once a server.
    async fn check(&mut self) -> Result<bool, Failed> {
        one_shot::allowed(&self.config, &self.database, STATUS_RIGHTS).await?;
        // There may be no second connection to be had: that must not keep anybody from seeing how it stands. If the
        // server is gone, the next question says so.
        let pooled = pooler::is_in_transaction_mode(&self.database).await.unwrap_or(false);
        self.checked = Some(pooled);
        Ok(pooled)
    }
}
