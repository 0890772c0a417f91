//! Records the topic template of a relay, so that applications can compare theirs. The relay also works without that.

use crate::config::Config;
use postgres::connection::connect::Database;
use postgres::schema::setting;
use relay::failure::Backoff;
use relay::health::availability::Availability;
use std::cell::Cell;
use std::convert::Infallible;
use std::time::Duration;

const AGAIN_WITHIN: Duration = Duration::from_secs(1);
/// A missing privilege lasts until an operator grants it, and each attempt adds an error to the log of the server.
const AGAIN_WITHIN_MAX: Duration = Duration::from_secs(60);

/// The only party of the outage.
const RELAY: usize = 0;

/// The topic template, and whether it is recorded.
pub(crate) struct Recording<'a> {
    config: &'a Config,
    database: &'a Database,
    is_done: Cell<bool>,
    outage: Availability,
}

impl<'a> Recording<'a> {
    pub(crate) fn new(config: &'a Config, database: &'a Database) -> Recording<'a> {
        let outage = Availability::new("topic template", "topic_template_unrecorded");
        let outage = outage.described("not recorded", "recorded");
        Recording { config, database, is_done: Cell::new(false), outage }
    }

    /// Tries once. The first failure is logged as a warning.
    pub(crate) async fn attempt(&self) {
        let outbox = &self.config.outbox;
        let template = outbox.topic.to_string();
        match setting::record(self.database, &outbox.table, &template).await {
            Ok(former) => {
                self.is_done.set(true);
                self.outage.worked(RELAY);
                if let Some(former) = former {
                    tracing::warn!(
                        code = "topic_template_changed",
                        "[outbox] topic is {template}, but the last relay that started on this table used {former}"
                    );
                }
            }
            Err(fault) => {
                self.outage.failed(RELAY, &fault, "Applications cannot compare theirs until it is recorded");
            }
        }
    }

    /// Tries again until an attempt succeeds. Never returns.
    pub(crate) async fn keep_trying(&self) -> Infallible {
        let mut backoff = Backoff::new(AGAIN_WITHIN, AGAIN_WITHIN_MAX, fastrand::Rng::new());
        while !self.is_done.get() {
            tokio::time::sleep(backoff.next_wait()).await;
            self.attempt().await;
        }
        std::future::pending().await
    }
}
