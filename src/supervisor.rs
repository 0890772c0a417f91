//! Puts the parts together and watches over them: every task is started here, joined here, and its death ends the
//! process.

use crate::config::Config;
use crate::kafka::cluster::KafkaCluster;
use crate::postgres::access::grants::Right;
use crate::postgres::connection::connect::{Database, connect_within};
use crate::postgres::connection::fault::ANSWER_TIMEOUT;
use crate::postgres::cycle::claim::PostgresOutbox;
use crate::postgres::cycle::holds::PostgresHolds;
use crate::postgres::cycle::lookout::PostgresLookout;
use crate::postgres::cycle::reap::PostgresReaper;
use crate::postgres::cycle::reap_modules::{ModulesReaper, Reapers};
use crate::postgres::cycle::statements::Statements;
use crate::postgres::schema::check::{self, CheckError, Facts, FaultKind};
use crate::relay::Limits;
use crate::relay::Relay;
use crate::relay::cycle::worker;
use crate::relay::failure::Failure;
use crate::relay::health::stats::Stats;
use crate::relay::holds::prober::{self, Holds, Waiting};
use crate::relay::lanes::marks::Marks;
use crate::relay::lanes::scout::Scout;
use crate::relay::publisher::Publisher;
use crate::relay::reaper;
use crate::relay::reaper::Pace;
use deadpool_postgres::Object;
use std::cell::RefCell;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_postgres::Client;

/// The checks only read the catalogue and small tables.
const CHECK_TIMEOUT: Duration = Duration::from_secs(30);

/// A relay that starts waits no longer for Kafka.
const KAFKA_WITHIN: Duration = Duration::from_secs(1);

/// How long a relay goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// Until it is asked to end.
    Asked,
    /// Until nothing is left that can be published.
    Drained,
}

/// What a relay needs before it can start.
pub struct Ready {
    /// The schema is valid.
    pub facts: Facts,
    /// The cluster to publish to.
    pub kafka: KafkaCluster,
    /// What [`reach_kafka`] has returned.
    pub kafka_answers: bool,
}

/// How it ended.
#[derive(Debug)]
pub enum End {
    /// It was asked to, and everything in flight is settled.
    Asked,
    /// Nothing is left but the rows of held topics and blocked keys, and what is paused.
    Drained(Waiting),
    /// It was asked to, and something in flight was not settled in time.
    TooLate,
    /// Postgres or Kafka could not be reached, which ends a relay that only drains.
    Unavailable(String),
    /// A task ended that never should.
    Broken(&'static str),
}

/// Why a relay cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Postgres cannot be reached.
    #[error("{0}")]
    Unavailable(String),
    /// The schema has to be mended.
    #[error("{0}")]
    Unfit(String),
}

/// How many connections to Postgres a relay needs: a worker each, the scout, two for the prober, the reaper, and one to
/// look what waits.
pub fn connections(config: &Config) -> usize {
    config.relay.workers + 5
}

/// The checks at start.
pub async fn check_schema(config: &Config, database: &Database) -> Result<Facts, StartError> {
    checking(database, async |client| check::check(client, &config.outbox.table).await).await
}

/// The same for a command that needs these rights instead of the relay's.
pub(crate) async fn check_schema_for(
    config: &Config,
    database: &Database,
    rights: &[Right],
) -> Result<Facts, StartError> {
    checking(database, async |client| check::check_for(client, &config.outbox.table, rights).await).await
}

async fn checking<T>(
    database: &Database,
    check: impl AsyncFnOnce(&Client) -> Result<T, CheckError>,
) -> Result<T, StartError> {
    let connection = database.get().await.map_err(|fault| StartError::Unavailable(fault.to_string()))?;
    match timeout(CHECK_TIMEOUT, check(&connection)).await {
        Ok(Ok(facts)) => Ok(facts),
        // A standby may be promoted, or another host of the URL be the primary.
        Ok(Err(CheckError::Faults(faults)))
            if faults.iter().any(|fault| fault.kind == FaultKind::Standby) =>
        {
            Err(StartError::Unavailable(CheckError::Faults(faults).to_string()))
        }
        Ok(Err(error @ CheckError::Faults(_))) => Err(StartError::Unfit(error.to_string())),
        Ok(Err(other)) => Err(StartError::Unavailable(other.to_string())),
        Err(_) => {
            // An answer may still come in on it.
            drop(Object::take(connection));
            let text = format!("The schema check timed out after {CHECK_TIMEOUT:?}.");
            Err(StartError::Unavailable(text))
        }
    }
}

/// Whether librdkafka makes a producer of the settings; connects to nothing.
pub fn check_kafka(config: &Config) -> Result<(), Failure> {
    KafkaCluster::new(&config.kafka, &config.outbox, &config.relay)?.check_settings()
}

/// No step of the scout or of a worker takes longer: a connection that is made at the last moment, and an answer that
/// comes so; or a wait for Kafka, which is interrupted to keep the claim alive.
pub fn longest_step(config: &Config) -> Duration {
    (connect_within(&config.postgres) + ANSWER_TIMEOUT).max(config.relay.takeover_timeout / 3)
}

/// The cluster to publish to. Connects to nothing yet.
pub fn kafka(config: &Config, stats: &Arc<Stats>) -> Result<KafkaCluster, Failure> {
    Ok(KafkaCluster::new(&config.kafka, &config.outbox, &config.relay)?.counting_into(Arc::clone(stats)))
}

/// Opens the first producer before the relay reports that it is ready: this takes longer than publishing an event. Returns
/// whether Kafka answered within a second.
pub async fn reach_kafka(kafka: &KafkaCluster) -> bool {
    matches!(timeout(KAFKA_WITHIN, kafka.probe()).await, Ok(Ok(())))
}

/// Relays until the end. `asked` completes when the relay is asked to end. What comes by `reloads` is the same
/// configuration but for what [`Config::reloaded`] takes from another one.
pub async fn run(
    config: &Config,
    database: Database,
    ready: Ready,
    stats: Arc<Stats>,
    until: Until,
    asked: impl Future<Output = ()>,
    mut reloads: watch::Receiver<Config>,
) -> End {
    let Ready { facts, kafka, kafka_answers } = ready;
    let marks = Rc::new(RefCell::new(Marks::new()));
    let template = config.outbox.topic.clone();
    let relay = Rc::new(Relay::new(kafka, template, limits(config), marks, Arc::clone(&stats)));
    let table = config.outbox.table.clone();
    let record_bytes_max = i32::try_from(relay.publisher.record_bytes_max()).unwrap_or(i32::MAX);
    let statements = Rc::new(Statements::new(
        &table,
        facts.payload,
        config.outbox.on_sent,
        &relay.template,
        record_bytes_max,
    ));

    if until == Until::Drained && !kafka_answers {
        if let Err(failure) = relay.publisher.probe().await {
            return End::Unavailable(format!("Kafka cannot be reached: {failure}"));
        }
    }
    if until == Until::Drained || kafka_answers {
        relay.gate.open();
    }
    let mut background: JoinSet<&'static str> = JoinSet::new();
    let mut cycle: JoinSet<&'static str> = JoinSet::new();
    for number in 1..=config.relay.workers {
        let outbox = PostgresOutbox::new(
            database.clone(),
            Rc::clone(&statements),
            config.relay.takeover_timeout,
            facts.server_version_num,
        );
        let work = Box::pin(worker::work(Rc::clone(&relay), number, outbox, fastrand::Rng::new()));
        cycle.spawn_local(async {
            work.await;
            "a worker"
        });
    }
    let lookout = PostgresLookout::new(database.clone(), Rc::clone(&statements), table.quoted());
    let scout = Scout::new(Rc::clone(&relay), lookout, fastrand::Rng::new());
    let drained = Rc::new(RefCell::new(None));
    let fault = Rc::clone(&drained);
    cycle.spawn_local(async move {
        match until {
            Until::Asked => scout.scout().await,
            Until::Drained => _ = fault.replace(scout.drain().await.err()),
        }
        "the scout"
    });
    let gate = prober::keep_gate(Rc::clone(&relay), fastrand::Rng::new());
    background.spawn_local(async {
        gate.await;
        "the prober of Kafka"
    });
    let holds = || PostgresHolds::new(database.clone(), Rc::clone(&statements), table.clone());
    let watching = prober::watch_holds(Rc::clone(&relay), holds());
    background.spawn_local(async {
        watching.await;
        "the watch over what waits"
    });
    let probes = PostgresOutbox::new(
        database.clone(),
        Rc::clone(&statements),
        config.relay.takeover_timeout,
        facts.server_version_num,
    );
    let probing = prober::keep_holds(Rc::clone(&relay), holds(), probes);
    background.spawn_local(async {
        probing.await;
        "the prober of held topics"
    });
    let (set_pace, paces) = watch::channel(pace(config));
    if config.reaper.enabled && until == Until::Asked {
        let reaper = PostgresReaper::new(
            database.clone(),
            table.clone(),
            config.reaper.retention,
            config.reaper.batch_size,
        );
        let modules = ModulesReaper::new(database.clone(), table.clone(), &config.reaper, Arc::clone(&stats));
        let reapers = Reapers::new(reaper, modules);
        let reaping = reaper::keep_reaping(reapers, paces, Arc::clone(&stats));
        background.spawn_local(async {
            reaping.await;
            "the reaper"
        });
    }

    let mut asked = pin!(asked);
    let broken = loop {
        tokio::select! {
            () = &mut asked => break None,
            Some(task) = background.join_next() => break Some(task.unwrap_or("a task")),
            Some(task) = cycle.join_next() => break match until {
                Until::Drained => None,
                Until::Asked => Some(task.unwrap_or("a task")),
            },
            Ok(()) = reloads.changed() => apply(&reloads.borrow_and_update(), &relay, &database, &set_pace),
        }
    };
    stats.stop();
    relay.board.stop();
    if let Some(task) = broken {
        return End::Broken(task);
    }
    let shutdown_timeout = reloads.borrow().relay.shutdown_timeout;
    let finished = timeout(shutdown_timeout, async { while cycle.join_next().await.is_some() {} }).await;
    relay.ends();
    match (finished, until) {
        (Err(_), _) => End::TooLate,
        (Ok(()), Until::Asked) => End::Asked,
        (Ok(()), Until::Drained) => {
            drained_end(&relay, &drained, PostgresHolds::new(database, statements, table)).await
        }
    }
}

/// A reload, in the middle of the work: what is under way goes on as it began.
fn apply(config: &Config, relay: &Relay<KafkaCluster>, database: &Database, set_pace: &watch::Sender<Pace>) {
    database.reconfigure(&config.postgres);
    relay.publisher.reconfigure(&config.kafka, &config.relay);
    relay.set_limits(limits(config));
    set_pace.send_replace(pace(config));
}

fn pace(config: &Config) -> Pace {
    Pace {
        interval: config.reaper.interval,
        retention: config.reaper.retention,
        inbox_retention: config.reaper.inbox_retention,
        idempotency_retention: config.reaper.idempotency_retention,
        batch_rows: config.reaper.batch_size,
    }
}

async fn drained_end(
    relay: &Relay<KafkaCluster>,
    fault: &RefCell<Option<crate::relay::failure::Fault>>,
    mut holds: PostgresHolds,
) -> End {
    if let Some(fault) = fault.take() {
        return End::Unavailable(fault.to_string());
    }
    if let Some(failure) = relay.gate.reason() {
        return End::Unavailable(format!("Kafka cannot be reached: {failure}"));
    }
    match holds.count().await {
        Ok(waiting) => End::Drained(waiting),
        Err(fault) => End::Unavailable(fault.to_string()),
    }
}

/// What the configuration says of the bounds of a batch.
pub fn limits(config: &Config) -> Limits {
    Limits {
        batch_rows: config.relay.batch_size,
        batch_bytes: config.relay.batch_bytes.as_usize(),
        publish_timeout: config.relay.publish_timeout,
        takeover_timeout: config.relay.takeover_timeout,
        poll_interval: config.relay.poll_interval,
        on_rejected: config.outbox.on_rejected,
        rejections_before_hold: config.outbox.rejections_before_hold,
    }
}
