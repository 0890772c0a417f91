//! Carries out faults: they begin, last, and end. The consequences are left to the relays.

use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::time::{Instant, sleep};
use tokio_postgres::Client;

use crate::application;
use crate::schedule::{Kind, PostgresFault, Step};
use crate::support::kafka_proxy::Action;
use crate::support::kafka_wire::{NOT_ENOUGH_REPLICAS, Produce};
use crate::support::postgres_proxy::{Act, At, Network};
use crate::support::postgres_server::Shutdown;
use crate::world::{LIMIT, Replica, World, settings};

/// Single rows fit below this limit, but rarely two in one request.
const LOWERED_LIMIT: &str = "700";
/// Fewer unsent rows than this do not count as a backlog.
const CAUGHT_UP: i64 = 1_000;
const CATCH_UP_TIMEOUT: Duration = Duration::from_secs(20);
const RETRY_INTERVAL: Duration = Duration::from_millis(50);
/// How many times a relay is stopped until it is stopped during a claim, and how long it runs in between.
const CATCHES: usize = 500;
const BETWEEN_CATCHES: Duration = Duration::from_millis(3);

/// For each lane that a transaction of this relay has locked, the first row that waits to be sent. The lock is in the
/// lane's row, as the transaction's id.
const CLAIMED: &str = "
SELECT array_agg(first)
FROM outbox_lane AS l
JOIN pg_stat_activity AS a ON l.xmax = a.backend_xid
CROSS JOIN LATERAL (
    SELECT min(id) AS first
    FROM outbox
    WHERE hashtext(aggregate_id) & 63 = lane AND sent_at IS NULL
      AND 'events.' || aggregate_type <> ALL (ARRAY(SELECT topic FROM outbox_hold))
) AS row
WHERE application_name = $1 AND first IS NOT NULL";

/// The relays that have a claim.
const CLAIMING: &str = "
SELECT DISTINCT application_name FROM outbox_lane AS l JOIN pg_stat_activity AS a ON l.xmax = a.backend_xid";

const TERMINATE: &str = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                         WHERE application_name LIKE 'relay-%'";

/// A fault that was carried out.
#[derive(Clone, Debug)]
pub struct Struck {
    pub fault: PostgresFault,
    pub began: SystemTime,
    /// The time at which everything that the relays need was available again.
    pub ended: SystemTime,
    /// The first unsent row of each lane that the relay had claimed when the fault began. Only if other relays must
    /// take the lanes over.
    pub claimed: Vec<i64>,
    /// No other fault occurred at the same time, so that all consequences are due to this one.
    pub alone: bool,
    /// The time from the end of the fault until every relay had been seen working. None if that never happened.
    pub all_worked: Option<Duration>,
}

impl World {
    /// Carries out the faults of a step. Returns when they have ended.
    pub async fn carry_out(&self, step: &Step, say: &impl Fn(&str)) -> Vec<Struck> {
        sleep(step.pause).await;
        say(&step.fault.to_string());
        let Some((after, second)) = &step.second else {
            if step.fault.kind.is_taken_over() {
                self.wait_until_caught_up().await;
            }
            return vec![self.strike(&step.fault, true).await];
        };
        let later = async {
            sleep(*after).await;
            say(&format!("  at the same time: {second}"));
            self.strike(second, false).await
        };
        let (first, second) = tokio::join!(self.strike(&step.fault, false), later);
        vec![first, second]
    }

    async fn strike(&self, fault: &PostgresFault, alone: bool) -> Struck {
        let relay = &self.relays[fault.relay];
        let mut began = SystemTime::now();
        let mut claimed = Vec::new();
        match fault.kind {
            Kind::KillRelay => {
                let mut relay = relay.lock().await;
                claimed = self.catch(&relay, alone).await;
                began = SystemTime::now();
                relay.kill();
                sleep(fault.lasts).await;
                relay.start();
            }
            Kind::FreezeRelayBriefly | Kind::FreezeRelay => {
                let relay = relay.lock().await;
                claimed = self.catch(&relay, alone).await;
                began = SystemTime::now();
                relay.running().freeze();
                sleep(fault.lasts).await;
                relay.running().thaw();
            }
            Kind::RestartPostgres => self.restart_postgres(Shutdown::Fast, fault.lasts).await,
            Kind::CrashPostgres => self.restart_postgres(Shutdown::Immediate, fault.lasts).await,
            Kind::KillPostgres => self.restart_postgres(Shutdown::Crash, fault.lasts).await,
            Kind::TerminateBackends => self.terminate_backends(fault.lasts).await,
            Kind::KillKafka => {
                let mut kafka = self.kafka.lock().await;
                kafka.kill();
                sleep(fault.lasts).await;
                kafka.restart().await;
            }
            Kind::StopKafka => {
                let mut kafka = self.kafka.lock().await;
                kafka.stop().await;
                sleep(fault.lasts).await;
                kafka.restart().await;
            }
            Kind::FreezeKafka => {
                let kafka = self.kafka.lock().await;
                kafka.freeze();
                sleep(fault.lasts).await;
                kafka.thaw();
            }
            Kind::CutPostgres => {
                let relay = relay.lock().await;
                relay.to_postgres.set_network(Network::Refused);
                relay.to_postgres.cut();
                sleep(fault.lasts).await;
                relay.to_postgres.set_network(Network::Open);
            }
            Kind::LosePostgres => {
                let relay = relay.lock().await;
                claimed = self.catch(&relay, alone).await;
                began = SystemTime::now();
                relay.to_postgres.set_network(Network::BlackHole);
                relay.running().thaw();
                sleep(fault.lasts).await;
                relay.to_postgres.set_network(Network::Open);
            }
            Kind::LoseCommits => {
                let relay = relay.lock().await;
                let until = Instant::now() + fault.lasts;
                while Instant::now() < until {
                    let lost = relay.to_postgres.on(At::CommitReply, Act::Cut);
                    // Ignores whether a COMMIT came in time.
                    _ = tokio::time::timeout_at(until, lost).await;
                }
            }
            Kind::CutKafka => {
                let mut relay = relay.lock().await;
                relay.to_kafka.close().await;
                sleep(fault.lasts).await;
                relay.to_kafka.resume().await;
            }
            Kind::DelayKafka => {
                let mut relay = relay.lock().await;
                relay.to_kafka.stall().await;
                sleep(fault.lasts).await;
                relay.to_kafka.resume().await;
            }
            Kind::LoseKafka => {
                let mut relay = relay.lock().await;
                relay.to_kafka.lose(true, true).await;
                sleep(fault.lasts).await;
                relay.to_kafka.resume().await;
            }
            Kind::LowerLimit => self.lower_limit(fault).await,
            Kind::StarveTopic => self.starve_topic(fault).await,
        }
        Struck { fault: fault.clone(), began, ended: SystemTime::now(), claimed, alone, all_worked: None }
    }

    /// Prevents the measured time of a takeover from including the time of a backlog. Stops waiting if the relays are
    /// too slow.
    async fn wait_until_caught_up(&self) {
        let client = self.connect().await;
        let begun = Instant::now();
        let backlog = "SELECT count(*) FROM outbox WHERE sent_at IS NULL";
        while client.query_one(backlog, &[]).await.unwrap().get::<_, i64>(0) > CAUGHT_UP
            && begun.elapsed() < CATCH_UP_TIMEOUT
        {
            sleep(RETRY_INTERVAL).await;
        }
    }

    /// The names of the relays that have a claim now.
    pub async fn claiming(&self, client: &Client) -> Vec<String> {
        let rows = client.query(CLAIMING, &[]).await.unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    }

    /// Stops a relay's process when it has a claim, and returns the first rows of its lanes. If the database cannot be
    /// queried, stops the process immediately and returns nothing.
    async fn catch(&self, relay: &Replica, ask: bool) -> Vec<i64> {
        let database = if ask { application::connect(&self.url).await.ok() } else { None };
        if let Some(database) = database {
            for _ in 0..CATCHES {
                if self.claimed(&database, relay).await.is_some() {
                    relay.running().freeze();
                    if let Some(claimed) = self.claimed(&database, relay).await {
                        return claimed;
                    }
                    // It has released the claim in the meantime.
                    relay.running().thaw();
                }
                sleep(BETWEEN_CATCHES).await;
            }
        }
        relay.running().freeze();
        Vec::new()
    }

    /// The first unsent rows of the lanes that this relay has claimed now, if it has a claim.
    async fn claimed(&self, database: &Client, relay: &Replica) -> Option<Vec<i64>> {
        database.query_one(CLAIMED, &[&relay.name()]).await.unwrap().get(0)
    }

    async fn restart_postgres(&self, how: Shutdown, away: Duration) {
        let mut postgres = Arc::clone(&self.postgres).lock_owned().await;
        // The wait for the server's end blocks, so it runs on a separate thread while writers and proxies continue.
        let stop = move || {
            postgres.stop(how);
            postgres
        };
        let mut postgres = tokio::task::spawn_blocking(stop).await.unwrap();
        sleep(away).await;
        postgres.start_again().await;
    }

    /// Repeatedly, as soon as they have reconnected.
    async fn terminate_backends(&self, lasts: Duration) {
        let postgres = self.postgres.lock().await;
        let client = postgres.connect().await;
        let until = Instant::now() + lasts;
        while Instant::now() < until {
            client.query_one(TERMINATE, &[]).await.unwrap();
            sleep(RETRY_INTERVAL).await;
        }
    }

    async fn lower_limit(&self, fault: &PostgresFault) {
        let topic = fault.topic().expect("a fault of a topic");
        // Locked, so that no other fault stops the broker.
        let _kafka = self.kafka.lock().await;
        self.cluster.alter(topic, &settings(LOWERED_LIMIT)).await;
        sleep(fault.lasts).await;
        self.cluster.alter(topic, &settings(LIMIT)).await;
    }

    /// Makes every relay see the answers of a broker without enough replicas.
    async fn starve_topic(&self, fault: &PostgresFault) {
        for relay in &self.relays {
            let topic = fault.topic().expect("a fault of a topic").to_owned();
            let refuse = move |request: &Produce| {
                if request.topic == topic { Action::Refuse(NOT_ENOUGH_REPLICAS) } else { Action::Pass }
            };
            relay.lock().await.to_kafka.act(refuse);
        }
        sleep(fault.lasts).await;
        for relay in &self.relays {
            relay.lock().await.to_kafka.act(|_| Action::Pass);
        }
    }
}
