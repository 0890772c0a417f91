//! Assembles the parts, and starts and joins every task. A task that ends unexpectedly ends the process.

use crate::config::Config;
use deadpool_postgres::Object;
use kafka::cluster::KafkaCluster;
use postgres::access::grants::Privilege;
use postgres::connection::errors::ANSWER_TIMEOUT;
use postgres::connection::password_command;
use postgres::connection::pool::{Database, connect_within};
use postgres::cycle::claim::PostgresOutbox;
use postgres::cycle::holds::PostgresHolds;
use postgres::cycle::measurements;
use postgres::cycle::reap::{PostgresReaper, RelayReaper};
use postgres::cycle::scout::PostgresScoutQueries;
use postgres::cycle::statements::Statements;
use postgres::schema::check::{Facts, check};
use postgres::schema::errors::{CheckError, STANDBY};
use relay::cycle::worker;
use relay::failure::KafkaFailure;
use relay::health::stats::Stats;
use relay::holds::{Holds, Waiting, prober};
use relay::lanes::marks::Marks;
use relay::lanes::scout::{Scout, Undrained};
use relay::publisher::Publisher;
use relay::reaper::{self, Pace};
use relay::reason::{fix, remedy};
use relay::{Limits, Relay};
use settings::doctor::Finding;
use std::cell::RefCell;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};

/// How long the schema check may take. It only reads the catalogue and small tables.
const CHECK_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a stopping relay waits to learn which acknowledged rows are recorded. systemd kills it 10 s after `shutdown_timeout`.
const UNRECORDED_WITHIN: Duration = Duration::from_secs(5);

/// How long a starting relay waits for Kafka, if nothing else is missing.
const KAFKA_WITHIN: Duration = Duration::from_secs(1);
/// How soon it probes Kafka again.
const KAFKA_AGAIN: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    Requested,
    /// When nothing is left that can be published.
    Drained,
}

pub struct Ready {
    pub database: Database,
    pub facts: Facts,
    pub kafka: KafkaCluster,
    /// The result of [`reach_kafka`].
    pub kafka_answers: bool,
    pub stats: Arc<Stats>,
}

#[derive(Debug)]
pub enum End {
    /// On request, with everything in flight settled.
    Requested,
    /// Only held, blocked and paused rows are left.
    Drained(Waiting),
    /// On request, but something in flight was not settled in time.
    TooLate,
    /// On request, but this many acknowledged rows could not be recorded as sent.
    Unrecorded(usize),
    /// Postgres or Kafka is unavailable, which ends a draining relay.
    Unavailable(String),
    /// The last rows of a draining relay can be neither published nor recorded.
    Stuck(String),
    /// This task ended unexpectedly.
    Broken(&'static str),
}

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("{0}")]
    Unavailable(String),
    /// A migration is pending. When it was applied, the relay can start.
    #[error("{0}")]
    Older(String),
    #[error("{0}")]
    Unfit(String),
}

/// How many Postgres connections a relay needs: one per worker, and one each for the scout, the reaper, the watch on holds, the
/// measurements, the record of its settings and clusters, and probes (two).
pub fn connections(config: &Config) -> usize {
    config.relay.workers + 7
}

/// Checks the schema for the relay, or for a command that needs these privileges instead. Pending migrations do not stop a command.
pub async fn check_schema(
    config: &Config,
    database: &Database,
    command: Option<&[Privilege]>,
) -> Result<Facts, StartError> {
    let outbox = &config.outbox;
    let connection = database.get().await.map_err(|fault| StartError::Unavailable(fault.to_string()))?;
    let checked = check(&connection, &outbox.table, outbox.topic_allow.is_some(), command);
    let checked = timeout(CHECK_TIMEOUT, checked).await;
    if let Ok(Ok(facts)) = checked {
        return Ok(facts);
    }
    // A transaction may be open, or an answer outstanding.
    drop(Object::take(connection));
    let Ok(Err(error)) = checked else {
        let fix = "Fix: check the server's load and locks";
        let text = format!("the schema check timed out after {CHECK_TIMEOUT:?}. {fix}");
        return Err(StartError::Unavailable(text));
    };
    let text = error.to_string();
    // A standby may be promoted, or another host of the URL may be the primary.
    let is_standby = |faults: &[Finding]| faults.iter().any(|fault| *fault.code == STANDBY);
    Err(match error {
        CheckError::Server(_) => StartError::Unavailable(text),
        CheckError::Faults(faults) | CheckError::Older(faults) if is_standby(&faults) => {
            StartError::Unavailable(text)
        }
        CheckError::Older(_) => StartError::Older(text),
        CheckError::Faults(_) => StartError::Unfit(text),
    })
}

/// The longest step of the scout or a worker: a password, a connection and an answer that all come at the last moment, or a
/// wait for Kafka, which is interrupted to keep the claim alive.
pub(crate) fn longest_step(config: &Config) -> Duration {
    let password =
        config.postgres.password_command.as_ref().map_or(Duration::ZERO, |_| password_command::WITHIN);
    (password + connect_within(&config.postgres) + ANSWER_TIMEOUT).max(config.relay.takeover_timeout / 3)
}

pub(crate) fn longest_attempt(config: &Config) -> Duration {
    longest_step(config) + CHECK_TIMEOUT
}

/// Opens the first producer, which takes longer than publishing an event, before the relay reports that it is ready.
/// Returns whether Kafka answered within [`KAFKA_WITHIN`], or while the relay waited for `others` to be ready. Until
/// it answers, the metrics show why it does not.
pub async fn reach_kafka(kafka: &KafkaCluster, stats: &Stats, others: impl Future<Output = ()>) -> bool {
    let within = Instant::now() + KAFKA_WITHIN;
    let answer = async {
        while let Err(failure) = kafka.probe().await {
            stats.kafka.fails(&failure);
            sleep(KAFKA_AGAIN).await;
        }
        stats.kafka.answers();
    };
    let too_late = async {
        others.await;
        sleep_until(within).await;
    };
    tokio::select! {
        () = answer => true,
        () = too_late => false,
    }
}

/// Runs the relay. `stop` completes when the relay is to end. `reloads` yields the configuration with the changes
/// that [`Config::reloaded`] allows.
pub async fn run(
    config: &Config,
    ready: Ready,
    until: Until,
    stop: impl Future<Output = ()>,
    mut reloads: watch::Receiver<Config>,
) -> End {
    let kafka_answers = ready.kafka_answers;
    let start = Start::new(config, ready, until);
    let relay = &start.relay;
    if let Err(failure) = start.open_gate(until, kafka_answers).await {
        return End::Unavailable(no_kafka(&failure));
    }
    let (mut cycle, mut background) = (Tasks::new(), Tasks::new());
    start.workers(&mut cycle);
    let drained = start.scout(&mut cycle, until);
    start.probers(&mut cycle, &mut background);
    let set_pace = start.reaper(&mut background, until);

    let (mut stop, mut requested) = (pin!(stop), until == Until::Requested);
    let broken = loop {
        tokio::select! {
            () = &mut stop => {
                requested = true;
                break None;
            }
            Some(task) = background.join_next() => break Some(task.unwrap_or("a task")),
            Some(task) = cycle.join_next() => break match until {
                Until::Drained => None,
                Until::Requested => Some(task.unwrap_or("a task")),
            },
            Ok(()) = reloads.changed() => {
                start.apply(&reloads.borrow_and_update(), until, &set_pace);
            }
        }
    };
    start.stats.stop();
    relay.lanes.board.stop();
    if let Some(task) = broken {
        return End::Broken(task);
    }
    let shutdown_timeout = reloads.borrow().relay.shutdown_timeout;
    let finished = timeout(shutdown_timeout, async { while cycle.join_next().await.is_some() {} }).await;
    relay.ends();
    match (drained.take(), finished, requested) {
        (Some(Undrained::Postgres(fault)), ..) => End::Unavailable(fault.to_string()),
        (Some(Undrained::Kafka(failure)), ..) => End::Unavailable(no_kafka(&failure)),
        (Some(Undrained::Stuck(error)), ..) => End::Stuck(error),
        (None, Err(_), _) => End::TooLate,
        (None, Ok(()), requested) => match start.unrecorded().await {
            0 if requested => End::Requested,
            0 => match start.holds().count().await {
                Ok(waiting) => End::Drained(waiting),
                Err(fault) => End::Unavailable(fault.to_string()),
            },
            rows => End::Unrecorded(rows),
        },
    }
}

type Tasks = JoinSet<&'static str>;

/// What the tasks of a relay need. Each method starts the tasks of one part.
struct Start<'a> {
    config: &'a Config,
    database: Database,
    statements: Rc<Statements>,
    relay: Rc<Relay<KafkaCluster>>,
    stats: Arc<Stats>,
}

impl<'a> Start<'a> {
    fn new(config: &'a Config, ready: Ready, until: Until) -> Start<'a> {
        let Ready { database, facts, kafka, stats, .. } = ready;
        let marks = Rc::new(RefCell::new(Marks::new()));
        let topics = facts.topics(&config.outbox);
        let relay = Rc::new(Relay::new(kafka, topics, limits(config, until), marks, Arc::clone(&stats)));
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        relay.kafka.counts.follow_the_clock(since);
        let record_bytes_max = i32::try_from(relay.kafka.publisher.record_bytes_max()).unwrap_or(i32::MAX);
        let statements = Rc::new(Statements::new(
            &config.outbox.table,
            facts.payload,
            config.outbox.on_sent,
            relay.kafka.topics.clone(),
            record_bytes_max,
        ));
        Start { config, database, statements, relay, stats }
    }

    /// Opens the gate at once if Kafka answers. A relay that only drains does not wait for Kafka.
    async fn open_gate(&self, until: Until, kafka_answers: bool) -> Result<(), KafkaFailure> {
        if until == Until::Drained && !kafka_answers {
            self.relay.kafka.publisher.probe().await?;
        }
        if until == Until::Drained || kafka_answers {
            self.relay.kafka.gate.works();
            self.relay.kafka.gate.open();
        }
        Ok(())
    }

    fn workers(&self, tasks: &mut Tasks) {
        for number in 1..=self.config.relay.workers {
            let relay = Rc::clone(&self.relay);
            let work = Box::pin(worker::work(relay, number, self.outbox(), fastrand::Rng::new()));
            tasks.spawn_local(named("a worker", work));
        }
    }

    /// Starts the scout. Returns the place where a draining scout leaves what ended it.
    fn scout(&self, tasks: &mut Tasks, until: Until) -> Rc<RefCell<Option<Undrained>>> {
        let queries = PostgresScoutQueries::new(self.database.clone(), Rc::clone(&self.statements));
        let scout = Scout::new(Rc::clone(&self.relay), queries, fastrand::Rng::new());
        let drained = Rc::new(RefCell::new(None));
        let ended = Rc::clone(&drained);
        tasks.spawn_local(named("the scout", async move {
            match until {
                Until::Requested => scout.scout().await,
                Until::Drained => _ = ended.replace(scout.drain().await.err()),
            }
        }));
        drained
    }

    /// A stop waits for the rows that the prober for held topics has sent.
    fn probers(&self, cycle: &mut Tasks, tasks: &mut Tasks) {
        let gate = prober::keep_gate(Rc::clone(&self.relay), fastrand::Rng::new());
        tasks.spawn_local(named("the Kafka prober", gate));
        let watching = prober::watch_holds(Rc::clone(&self.relay), self.holds());
        tasks.spawn_local(named("the hold watcher", watching));
        let probing = prober::keep_holds(Rc::clone(&self.relay), self.holds(), self.outbox());
        cycle.spawn_local(named("the prober for held topics", probing));
        let statements = Rc::clone(&self.statements);
        let measuring =
            measurements::keep_measuring(Rc::clone(&self.relay), self.database.clone(), statements);
        tasks.spawn_local(named("the measurements", measuring));
    }

    /// Starts the reaper, if it is enabled. Returns how to change its pace.
    fn reaper(&self, tasks: &mut Tasks, until: Until) -> watch::Sender<Pace> {
        let (set_pace, paces) = watch::channel(self.config.pace());
        if self.config.reaper.enabled && until == Until::Requested {
            let (table, stats) = (self.config.outbox.table.clone(), Arc::clone(&self.stats));
            let reaper = PostgresReaper::new(self.database.clone(), table, self.config.pace());
            let reaper = RelayReaper::new(reaper, Arc::clone(&stats));
            let reaping = reaper::keep_reaping(reaper, paces, stats);
            tasks.spawn_local(named("the reaper", reaping));
        }
        set_pace
    }

    /// Applies a reload. Work in progress keeps the old settings.
    fn apply(&self, config: &Config, until: Until, set_pace: &watch::Sender<Pace>) {
        self.database.reconfigure(&config.postgres);
        self.relay.kafka.publisher.reconfigure(&config.kafka, &config.limits());
        self.relay.settings.set_limits(limits(config, until));
        self.relay.lanes.board.doubt(); // the scout waits for the old `poll_interval`
        set_pace.send_replace(config.pace());
    }

    /// How many rows are acknowledged but unsent. Another relay may have settled those of a claim that was lost.
    async fn unrecorded(&self) -> usize {
        let (ids, event_ids) = self.relay.memory.acknowledged.borrow().ids();
        if ids.is_empty() {
            return 0;
        }
        let mut holds = self.holds();
        match timeout(UNRECORDED_WITHIN, holds.unsent(&ids, &event_ids)).await {
            Ok(Ok(unsent)) => unsent.len(),
            Ok(Err(fault)) => {
                tracing::debug!("{fault}");
                ids.len()
            }
            Err(_) => ids.len(),
        }
    }

    fn outbox(&self) -> PostgresOutbox {
        let statements = Rc::clone(&self.statements);
        PostgresOutbox::new(self.database.clone(), statements, self.config.relay.takeover_timeout)
    }

    fn holds(&self) -> PostgresHolds {
        PostgresHolds::new(self.database.clone(), Rc::clone(&self.statements))
    }
}

async fn named(name: &'static str, task: impl Future<Output = ()>) -> &'static str {
    task.await;
    name
}

/// A relay that ends when the outbox is empty must not wait for further events.
fn limits(config: &Config, until: Until) -> Limits {
    let limits = config.limits();
    let flow_window = if until == Until::Drained { Duration::ZERO } else { limits.flow_window };
    Limits { flow_window, ..limits }
}

fn no_kafka(failure: &KafkaFailure) -> String {
    format!("Kafka cannot be reached: {failure}. {}", fix(remedy(failure.reason)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;
    use std::path::Path;

    #[test]
    fn an_attempt_takes_longer_than_all_connection_timeouts() {
        for (parameter, setting, seconds) in [
            ("", "connect_timeout = '60s'", 240),
            ("?connect_timeout=60", "", 240),
            ("?connect_timeout=60", "connect_timeout = '30s'", 120),
            ("?connect_timeout=9223372036854775807", "", 2_400),
        ] {
            let text = format!(
                "[postgres]\nurl = 'postgres://relay@localhost/app{parameter}'\n{setting}\n\
                 [kafka]\nbootstrap_servers = 'localhost:9092'\n"
            );
            let config = config::load_text(Path::new("config.toml"), &text, std::iter::empty()).unwrap();
            let connecting = connect_within(&config.postgres);
            assert_eq!(connecting, Duration::from_secs(seconds), "{parameter} {setting}");
            assert_eq!(longest_attempt(&config), connecting + ANSWER_TIMEOUT + CHECK_TIMEOUT);
        }
    }
}
