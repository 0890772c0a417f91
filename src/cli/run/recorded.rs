//! What a relay records in the database, and compares with what was recorded there before.
//!
//! - The PostgreSQL cluster and the Kafka cluster. The relay publishes nothing before it has compared them, and stops if one of
//!   them is another one.
//! - The topic template, so that applications can compare theirs. The relay also works without that.

use crate::cli::failed::Failed;
use crate::config::Config;
use futures_util::FutureExt;
use kafka::cluster::KafkaCluster;
use postgres::connection::exec::ShortTransaction;
use postgres::connection::pool::Database;
use postgres::schema::identity::{self, Identity, Mismatch};
use postgres::table::TableName;
use relay::failure::{Backoff, FaultKind, KafkaFailure, PostgresFault};
use relay::health::availability::Availability;
use relay::health::stats::Stats;
use relay::reason::{CLUSTER_UNCONFIRMED, OTHER_CLUSTER};
use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

/// How often a running relay compares again. A new connection may lead to another server, so it compares sooner then.
const AGAIN_AFTER: Duration = Duration::from_secs(30);
const CONNECTED_WITHIN: Duration = Duration::from_millis(500);
const ADVICE: &str = "Until they are recorded, the relay does not notice that the database was copied or that the brokers \
     belong to another cluster. Run the statements of `outbox-relay migrate --print-roles` again";

const TEMPLATE_AGAIN_WITHIN: Duration = Duration::from_secs(1);
/// A missing privilege lasts until an operator grants it, and each attempt adds an error to the log of the server.
const TEMPLATE_AGAIN_WITHIN_MAX: Duration = Duration::from_secs(60);
const TEMPLATE_ADVICE: &str = "Applications cannot compare theirs until it is recorded";

/// The only party of the outages.
const RELAY: usize = 0;

pub(crate) struct Recorded {
    database: Database,
    table: TableName,
    stats: Arc<Stats>,
    template: String,
    has_template: Cell<bool>,
    template_outage: Availability,
    unrecorded: Availability,
    /// The server does not show its system identifier. Each attempt would add an error to its log.
    is_hidden: Cell<bool>,
    /// The ID of the Kafka cluster that was compared last.
    kafka: RefCell<Option<String>>,
    problem: RefCell<Option<String>>,
    stops: Notify,
}

impl Recorded {
    pub(crate) fn new(config: &Config, database: &Database, stats: &Arc<Stats>) -> Rc<Recorded> {
        let template_outage = Availability::new("topic template", "topic_template_unrecorded");
        let unrecorded = Availability::new("the clusters of the outbox", "clusters_unrecorded");
        Rc::new(Recorded {
            database: database.clone(),
            table: config.outbox.table.clone(),
            stats: Arc::clone(stats),
            template: config.outbox.topic.to_string(),
            has_template: Cell::new(false),
            template_outage: template_outage.described("not recorded", "recorded"),
            unrecorded: unrecorded.described("not recorded", "recorded"),
            is_hidden: Cell::new(false),
            kafka: RefCell::default(),
            problem: RefCell::default(),
            stops: Notify::new(),
        })
    }

    /// Tries once to record the topic template. The first failure is logged as a warning.
    pub(crate) async fn attempt(&self) {
        let Recorded { database, table, template, template_outage, .. } = self;
        match identity::record_template(database, table, template).await {
            Ok(former) => {
                self.has_template.set(true);
                template_outage.worked(RELAY);
                if let Some(former) = former {
                    tracing::warn!(
                        code = "topic_template_changed",
                        "[outbox] topic is {template}, but the last relay that started on this table used {former}"
                    );
                }
            }
            Err(fault) => template_outage.failed(RELAY, &fault, TEMPLATE_ADVICE),
        }
    }

    /// Tries again until an attempt succeeds. Never returns.
    pub(crate) async fn keep_trying(&self) -> Infallible {
        let mut backoff =
            Backoff::new(TEMPLATE_AGAIN_WITHIN, TEMPLATE_AGAIN_WITHIN_MAX, fastrand::Rng::new());
        while !self.has_template.get() {
            sleep(backoff.next_wait()).await;
            self.attempt().await;
        }
        std::future::pending().await
    }

    /// From now on, each producer compares its cluster before it is used. Returns false if Kafka must be probed first, because
    /// it has not answered or could not be compared.
    pub(crate) async fn begin(self: &Rc<Self>, kafka: &KafkaCluster, answers: bool) -> Result<bool, Failed> {
        let recorded = Rc::clone(self);
        kafka.comparison().set(Rc::new(move |id| {
            let recorded = Rc::clone(&recorded);
            async move { recorded.compare(Some(id)).await }.boxed_local()
        }));
        let compared = match kafka.comparison().answered().filter(|_| answers) {
            Some(id) => kafka.comparison().check(id).await,
            None => self.compare(None).await,
        };
        self.result()?;
        if let Err(failure) = &compared {
            tracing::debug!("{failure}");
            if answers {
                self.stats.kafka.fails(failure);
            }
        }
        Ok(answers && compared.is_ok())
    }

    /// Waits until one of the clusters turns out to be another one.
    pub(crate) async fn watch(&self) {
        while self.result().is_ok() {
            let connections = self.stats.postgres_connections.get();
            let due = async {
                let begun = Instant::now();
                while begun.elapsed() < AGAIN_AFTER && self.stats.postgres_connections.get() == connections {
                    sleep(CONNECTED_WITHIN).await;
                }
            };
            tokio::select! {
                () = self.stops.notified() => {}
                () = due => {
                    let kafka = self.kafka.borrow().clone();
                    if let Err(failure) = self.compare(kafka).await {
                        tracing::debug!("{failure}");
                    }
                }
            }
        }
    }

    /// Fails if one of the clusters is another one.
    pub(crate) fn result(&self) -> Result<(), Failed> {
        self.problem.borrow().as_deref().map_or(Ok(()), |problem| Err(Failed::configuration(problem)))
    }

    /// Compares the connected database, and the Kafka cluster with this ID if there is one.
    async fn compare(&self, kafka: Option<String>) -> Result<(), KafkaFailure> {
        match self.mismatches(kafka.clone()).await {
            Ok(mismatches) if mismatches.is_empty() => {
                self.kafka.replace(kafka);
                Ok(())
            }
            Ok(mismatches) => {
                let problem = explained(&mismatches);
                self.problem.replace(Some(problem.clone()));
                self.stops.notify_one();
                Err(OTHER_CLUSTER.failure(problem))
            }
            // A privilege or a table is missing. Until an operator acts, the relay works as before.
            Err(fault) if matches!(fault.kind, FaultKind::Refused | FaultKind::Data) => {
                self.unrecorded.failed(RELAY, &fault, ADVICE);
                self.kafka.replace(kafka);
                Ok(())
            }
            Err(fault) => Err(CLUSTER_UNCONFIRMED.failure(fault.to_string())),
        }
    }

    async fn mismatches(&self, kafka: Option<String>) -> Result<Vec<Mismatch>, PostgresFault> {
        let Recorded { database, table, unrecorded, is_hidden, .. } = self;
        let system = if is_hidden.get() { None } else { identity::system(database).await? };
        is_hidden.set(system.is_none());
        let found = Identity { system, kafka };
        // Another session may have locked the table, and only such a transaction does not wait for long.
        let transaction = ShortTransaction::recording(database.clone());
        let recorded = identity::recorded(&transaction, table).await?;
        let mismatches = recorded.mismatches(&found);
        if !mismatches.is_empty() {
            return Ok(mismatches);
        }
        let recorded = identity::record(database, table, &recorded, &found).await?;
        unrecorded.worked(RELAY);
        Ok(recorded.mismatches(&found))
    }
}

/// What differs, why, and what to do.
pub(crate) fn explained(mismatches: &[Mismatch]) -> String {
    let differences: Vec<String> = mismatches.iter().map(Mismatch::to_string).collect();
    let options: Vec<&str> = mismatches.iter().map(|mismatch| mismatch.option).collect();
    format!(
        "The outbox was recorded for another place: {}. This is a copy, an upgraded or restored database, or a wrong setting. \
         Nothing is published. Fix: correct [postgres] url or [kafka] bootstrap_servers. If the outbox has moved here, read \
         docs/moving.md, then run `outbox-relay confirm {} --config FILE`.",
        differences.join("; "),
        options.join(" ")
    )
}
