//! One harness, four ways to make a payment: the one of this crate, and three that are written by hand again and again.
//! The harness has to find fault with those three, else it would prove nothing about the first.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pg_outbox::idempotency::{Begun, Fingerprint, Idempotency, Key, Request, Response, Scope};
use tokio::sync::Barrier;
use tokio_postgres::Client;

use crate::database::{Database, connect};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// `begin`, and `finish` in the transaction of the change.
    Ours,
    /// Looks whether there is a response, and works if there is none.
    CheckThenInsert,
    /// Stores the response in a transaction after that of the change.
    ResponseAfterCommit,
    /// Asks nobody: `SET cents = cents - 10`.
    RelativeUpdate,
}

/// What goes wrong in the world.
#[derive(Clone)]
enum Fault {
    /// Nothing, but everybody has looked before anybody works.
    Race(Arc<Barrier>),
    /// The first one dies when the change is made, and where it can be committed it is, before anything else.
    Crash(Arc<AtomicBool>),
}

impl Fault {
    async fn when_it_has_looked(&self) {
        if let Fault::Race(everybody) = self {
            everybody.wait().await;
        }
    }

    fn kills_after_the_change(&self) -> bool {
        matches!(self, Fault::Crash(dead) if !dead.swap(true, Ordering::SeqCst))
    }
}

/// The client of the application lost its connection.
struct Died;

struct Payment {
    way: Way,
    fault: Fault,
    schema: String,
    idempotency: Idempotency,
}

impl Payment {
    fn sql(&self, sql: &str) -> String {
        sql.replace("{s}", &self.schema)
    }

    /// One attempt; `None`: come again.
    async fn attempt(&self, client: &mut Client, looked: &mut bool) -> Result<Option<String>, Died> {
        match self.way {
            Way::Ours => self.ours(client, looked).await,
            _ => self.by_hand(client, looked).await,
        }
    }

    async fn ours(&self, client: &mut Client, looked: &mut bool) -> Result<Option<String>, Died> {
        let scope = Scope::new("POST", "/payments", "user 1").unwrap();
        let request = Request::new(scope, Key::new("k").unwrap(), Fingerprint::bytes(b"10"));
        let begun = self.idempotency.begin(&*client, &request).await.unwrap();
        self.look_once(looked).await;
        let guard = match begun {
            Begun::Started(guard) => guard,
            Begun::Replay(response) => {
                return Ok(Some(String::from_utf8(response.bytes().to_vec()).unwrap()));
            }
            Begun::InProgress { .. } => return Ok(None),
            Begun::Mismatch => panic!("there is one request only"),
        };
        let tx = client.transaction().await.unwrap();
        let answer = change(&tx, &self.schema).await;
        if self.fault.kills_after_the_change() {
            return Err(Died); // dropping the transaction rolls it back, as a closed connection does
        }
        guard.finish(&tx, &Response::new(201).body(answer.clone())).await.unwrap();
        tx.commit().await.unwrap();
        Ok(Some(answer))
    }

    async fn by_hand(&self, client: &mut Client, looked: &mut bool) -> Result<Option<String>, Died> {
        let stored = self.sql("SELECT answer FROM {s}.stored WHERE key = 'k'");
        let store = self.sql("INSERT INTO {s}.stored VALUES ('k', $1) ON CONFLICT DO NOTHING");
        if self.way != Way::RelativeUpdate
            && let Some(row) = client.query_opt(&stored, &[]).await.unwrap()
        {
            return Ok(Some(row.get(0)));
        }
        self.look_once(looked).await;
        let tx = client.transaction().await.unwrap();
        let answer = change(&tx, &self.schema).await;
        if self.way == Way::CheckThenInsert {
            tx.execute(&store, &[&answer]).await.unwrap();
        }
        tx.commit().await.unwrap();
        if self.fault.kills_after_the_change() {
            return Err(Died);
        }
        if self.way == Way::ResponseAfterCommit {
            client.execute(&store, &[&answer]).await.unwrap();
        }
        Ok(Some(answer))
    }

    async fn look_once(&self, looked: &mut bool) {
        if !std::mem::replace(looked, true) {
            self.fault.when_it_has_looked().await;
        }
    }
}

/// The business change: 10 cents less, and an entry whose number is the answer.
async fn change(tx: &tokio_postgres::Transaction<'_>, schema: &str) -> String {
    let sql = format!("UPDATE {schema}.account SET cents = cents - 10");
    tx.execute(&sql, &[]).await.unwrap();
    let sql = format!("INSERT INTO {schema}.payment DEFAULT VALUES RETURNING id::text");
    tx.query_one(&sql, &[]).await.unwrap().get(0)
}

/// Lets each of `clients` send the same request until it has an answer, and says what is wrong afterwards.
async fn faults(way: Way, fault: Fault, clients: usize) -> Vec<String> {
    let db = Database::new().await;
    db.run(
        "CREATE TABLE {s}.account (cents bigint); INSERT INTO {s}.account VALUES (1000);
         CREATE TABLE {s}.payment (id bigint GENERATED ALWAYS AS IDENTITY);
         CREATE TABLE {s}.stored (key text PRIMARY KEY, answer text)",
    )
    .await;
    let mut connected = Vec::new();
    for _ in 0..clients {
        connected.push(connect().await);
    }
    // Long enough that nobody who works is overtaken, or short enough to wait for after a crash.
    let lock_for = Duration::from_secs(if matches!(fault, Fault::Race(_)) { 600 } else { 1 });
    let idempotency = db.idempotency.clone().lock_for(lock_for).unwrap();
    let payment = Arc::new(Payment { way, fault, schema: db.schema.clone(), idempotency });
    let senders = connected.into_iter().map(|mut client| {
        let payment = Arc::clone(&payment);
        tokio::spawn(async move {
            let mut looked = false;
            loop {
                match payment.attempt(&mut client, &mut looked).await {
                    Ok(Some(answer)) => return answer,
                    Ok(None) => tokio::time::sleep(Duration::from_millis(20)).await, // as Retry-After asks
                    Err(Died) => client = connect().await,
                }
            }
        })
    });
    let mut answers = Vec::new();
    for sender in senders.collect::<Vec<_>>() {
        answers.push(sender.await.unwrap());
    }
    answers.sort();
    answers.dedup();

    let mut found = Vec::new();
    let payments = db.number("SELECT count(*) FROM {s}.payment").await;
    let cents = db.number("SELECT cents FROM {s}.account").await;
    if payments != 1 {
        found.push(format!("{payments} payments"));
    }
    if cents != 990 {
        found.push(format!("{cents} cents are left"));
    }
    if answers.len() != 1 {
        found.push(format!("{} different answers", answers.len()));
    }
    db.clean_up().await;
    found
}

fn race(clients: usize) -> Fault {
    Fault::Race(Arc::new(Barrier::new(clients)))
}

fn crash() -> Fault {
    Fault::Crash(Arc::new(AtomicBool::new(false)))
}

#[tokio::test]
async fn of_64_clients_with_one_key_one_pays_and_all_have_its_answer() {
    assert_eq!(faults(Way::Ours, race(64), 64).await, [""; 0]);
}

#[tokio::test]
async fn a_crash_after_the_change_pays_once() {
    assert_eq!(faults(Way::Ours, crash(), 1).await, [""; 0]);
}

#[tokio::test]
async fn looking_before_working_pays_twice() {
    let found = faults(Way::CheckThenInsert, race(8), 8).await;
    assert!(found.contains(&"8 payments".to_owned()), "{found:?}");
}

#[tokio::test]
async fn storing_the_response_after_the_commit_pays_twice() {
    let found = faults(Way::ResponseAfterCommit, crash(), 1).await;
    assert!(found.contains(&"2 payments".to_owned()), "{found:?}");
}

#[tokio::test]
async fn a_relative_update_that_is_sent_again_is_made_again() {
    let found = faults(Way::RelativeUpdate, crash(), 1).await;
    assert!(found.contains(&"980 cents are left".to_owned()), "{found:?}");
}
