//! Compares the PostgreSQL cluster and the Kafka cluster with the recorded ones. The relay publishes nothing before that, and
//! stops if one of them is another one.

use crate::cli::exit::Failed;
use crate::config::Config;
use futures_util::FutureExt;
use kafka::cluster::KafkaCluster;
use postgres::connection::connect::Database;
use postgres::connection::transaction::ShortTransaction;
use postgres::schema::identity::{self, Identity, Mismatch};
use postgres::table::TableName;
use relay::failure::{FaultKind, KafkaFailure, PostgresFault};
use relay::health::availability::Availability;
use relay::health::stats::Stats;
use relay::reason::{CLUSTER_UNCONFIRMED, OTHER_CLUSTER};
use std::cell::{Cell, RefCell};
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

/// The only party of the outage.
const RELAY: usize = 0;

/// The clusters of this relay. Clones share their state.
#[derive(Clone)]
pub(crate) struct Clusters(Rc<Shared>);

struct Shared {
    database: Database,
    table: TableName,
    stats: Arc<Stats>,
    unrecorded: Availability,
    /// The server does not show its system identifier. Each attempt would add an error to its log.
    is_hidden: Cell<bool>,
    /// The ID of the Kafka cluster that was compared last.
    kafka: RefCell<Option<String>>,
    problem: RefCell<Option<String>>,
    stops: Notify,
}

impl Clusters {
    pub(crate) fn new(config: &Config, database: &Database, stats: &Arc<Stats>) -> Clusters {
        let unrecorded = Availability::new("the clusters of the outbox", "clusters_unrecorded");
        Clusters(Rc::new(Shared {
            database: database.clone(),
            table: config.outbox.table.clone(),
            stats: Arc::clone(stats),
            unrecorded: unrecorded.described("not recorded", "recorded"),
            is_hidden: Cell::new(false),
            kafka: RefCell::default(),
            problem: RefCell::default(),
            stops: Notify::new(),
        }))
    }

    /// From now on, each producer compares its cluster before it is used. Returns false if Kafka must be probed first, because
    /// it has not answered or could not be compared.
    pub(crate) async fn begin(&self, kafka: &KafkaCluster, answers: bool) -> Result<bool, Failed> {
        let clusters = self.clone();
        kafka.comparison().set(Rc::new(move |id| {
            let clusters = clusters.clone();
            async move { clusters.compare(Some(id)).await }.boxed_local()
        }));
        let compared = match kafka.comparison().answered().filter(|_| answers) {
            Some(id) => kafka.comparison().check(id).await,
            None => self.compare(None).await,
        };
        self.result()?;
        if let Err(failure) = &compared {
            tracing::debug!("{failure}");
        }
        Ok(answers && compared.is_ok())
    }

    /// Waits until one of the clusters turns out to be another one.
    pub(crate) async fn watch(&self) {
        let shared = &self.0;
        while self.result().is_ok() {
            let connections = shared.stats.postgres_connections.get();
            let due = async {
                let begun = Instant::now();
                while begun.elapsed() < AGAIN_AFTER && shared.stats.postgres_connections.get() == connections
                {
                    sleep(CONNECTED_WITHIN).await;
                }
            };
            tokio::select! {
                () = shared.stops.notified() => {}
                () = due => {
                    let kafka = shared.kafka.borrow().clone();
                    if let Err(failure) = self.compare(kafka).await {
                        tracing::debug!("{failure}");
                    }
                }
            }
        }
    }

    /// Fails if one of the clusters is another one.
    pub(crate) fn result(&self) -> Result<(), Failed> {
        match self.0.problem.borrow().as_deref() {
            Some(problem) => Err(Failed::Configuration(anyhow::anyhow!("{problem}"))),
            None => Ok(()),
        }
    }

    /// Compares the connected database, and the Kafka cluster with this ID if there is one.
    async fn compare(&self, kafka: Option<String>) -> Result<(), KafkaFailure> {
        let shared = &self.0;
        match self.mismatches(kafka.clone()).await {
            Ok(mismatches) if mismatches.is_empty() => {
                shared.kafka.replace(kafka);
                Ok(())
            }
            Ok(mismatches) => {
                let problem = explained(&mismatches);
                shared.problem.replace(Some(problem.clone()));
                shared.stops.notify_one();
                Err(OTHER_CLUSTER.failure(problem))
            }
            Err(fault) if is_lasting(&fault) => {
                shared.unrecorded.failed(RELAY, &fault, ADVICE);
                shared.kafka.replace(kafka);
                Ok(())
            }
            Err(fault) => Err(CLUSTER_UNCONFIRMED.failure(fault.to_string())),
        }
    }

    async fn mismatches(&self, kafka: Option<String>) -> Result<Vec<Mismatch>, PostgresFault> {
        let Shared { database, table, unrecorded, is_hidden, .. } = &*self.0;
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

/// Whether the relay works as before until an operator acts: a privilege or a table is missing.
fn is_lasting(fault: &PostgresFault) -> bool {
    matches!(fault.kind, FaultKind::Refused | FaultKind::Data)
}

/// What differs, why, and what to do.
pub(crate) fn explained(mismatches: &[Mismatch]) -> String {
    let differences: Vec<String> = mismatches.iter().map(Mismatch::to_string).collect();
    let options: Vec<&str> = mismatches.iter().map(Mismatch::option).collect();
    format!(
        "The outbox was recorded for another place: {}. This is a copy, an upgraded or restored database, or a wrong setting. \
         Nothing is published. Fix: correct [postgres] url or [kafka] bootstrap_servers. If the outbox has moved here, read \
         docs/moving.md, then run `outbox-relay confirm {} --config FILE`.",
        differences.join("; "),
        options.join(" ")
    )
}
