//! Tests four ways to make a payment: this crate, and three common mistakes. The harness must detect the three mistakes,
//! otherwise its success for the crate would prove nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pg_idempotency::idempotency::{Begun, Fingerprint, Idempotency, Key, Request, Response, Scope};
use tokio::sync::Barrier;
use tokio_postgres::Client;

use crate::database::{Database, connect};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Method {
    /// `begin`, and `finish` in the transaction of the change.
    Crate,
    /// Checks for a stored response and works if there is none.
    CheckThenInsert,
    /// Stores the response in a second transaction, after the change.
    ResponseAfterCommit,
    /// Runs `SET cents = cents - 10` without a check.
    RelativeUpdate,
}

#[derive(Clone)]
enum Fault {
    /// All clients check for a response before the first one works.
    Race(Arc<Barrier>),
    /// The first client dies after the change. Methods that commit the change separately have committed it.
    Crash(Arc<AtomicBool>),
}

impl Fault {
    async fn after_the_check(&self) {
        if let Fault::Race(barrier) = self {
            barrier.wait().await;
        }
    }

    fn kills_after_the_change(&self) -> bool {
        matches!(self, Fault::Crash(dead) if !dead.swap(true, Ordering::SeqCst))
    }
}

/// The client of the application lost its connection.
struct Died;

struct Payment {
    method: Method,
    fault: Fault,
    schema: String,
    idempotency: Idempotency,
}

impl Payment {
    fn sql(&self, sql: &str) -> String {
        sql.replace("{s}", &self.schema)
    }

    /// Makes one attempt. `None` means that the client must retry.
    async fn attempt(&self, client: &mut Client, checked: &mut bool) -> Result<Option<String>, Died> {
        match self.method {
            Method::Crate => self.with_crate(client, checked).await,
            _ => self.by_hand(client, checked).await,
        }
    }

    async fn with_crate(&self, client: &mut Client, checked: &mut bool) -> Result<Option<String>, Died> {
        let scope = Scope::new("POST", "/payments", "user 1").unwrap();
        let request = Request::new(scope, Key::new("k").unwrap(), Fingerprint::bytes(b"10"));
        let begun = self.idempotency.begin(&*client, &request).await.unwrap();
        self.check_once(checked).await;
        let guard = match begun {
            Begun::Started(guard) => guard,
            Begun::Replay(response) => {
                return Ok(Some(String::from_utf8(response.bytes().to_vec()).unwrap()));
            }
            Begun::InProgress { .. } => return Ok(None),
            Begun::Mismatch => panic!("all clients send the same request"),
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

    async fn by_hand(&self, client: &mut Client, checked: &mut bool) -> Result<Option<String>, Died> {
        let stored = self.sql("SELECT answer FROM {s}.stored WHERE key = 'k'");
        let store = self.sql("INSERT INTO {s}.stored VALUES ('k', $1) ON CONFLICT DO NOTHING");
        if self.method != Method::RelativeUpdate
            && let Some(row) = client.query_opt(&stored, &[]).await.unwrap()
        {
            return Ok(Some(row.get(0)));
        }
        self.check_once(checked).await;
        let tx = client.transaction().await.unwrap();
        let answer = change(&tx, &self.schema).await;
        if self.method == Method::CheckThenInsert {
            tx.execute(&store, &[&answer]).await.unwrap();
        }
        tx.commit().await.unwrap();
        if self.fault.kills_after_the_change() {
            return Err(Died);
        }
        if self.method == Method::ResponseAfterCommit {
            client.execute(&store, &[&answer]).await.unwrap();
        }
        Ok(Some(answer))
    }

    async fn check_once(&self, checked: &mut bool) {
        if !std::mem::replace(checked, true) {
            self.fault.after_the_check().await;
        }
    }
}

/// The business change: subtracts 10 cents and inserts a payment. Its id is the answer.
async fn change(tx: &tokio_postgres::Transaction<'_>, schema: &str) -> String {
    let sql = format!("UPDATE {schema}.account SET cents = cents - 10");
    tx.execute(&sql, &[]).await.unwrap();
    let sql = format!("INSERT INTO {schema}.payment DEFAULT VALUES RETURNING id::text");
    tx.query_one(&sql, &[]).await.unwrap().get(0)
}

/// All clients send the same request until they have an answer. Returns what is wrong afterwards.
async fn faults(method: Method, fault: Fault, clients: usize) -> Vec<String> {
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
    // In a race no lock may expire. After a crash the test waits until the lock expires.
    let lock_for = Duration::from_secs(if matches!(fault, Fault::Race(_)) { 600 } else { 1 });
    let idempotency = db.idempotency.clone().lock_for(lock_for).unwrap();
    let payment = Arc::new(Payment { method, fault, schema: db.schema.clone(), idempotency });
    let senders = connected.into_iter().map(|mut client| {
        let payment = Arc::clone(&payment);
        tokio::spawn(async move {
            let mut checked = false;
            loop {
                match payment.attempt(&mut client, &mut checked).await {
                    Ok(Some(answer)) => return answer,
                    Ok(None) => tokio::time::sleep(Duration::from_millis(20)).await,
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
async fn many_clients_with_one_key_pay_once_and_get_the_same_answer() {
    assert_eq!(faults(Method::Crate, race(64), 64).await, [""; 0]);
}

#[tokio::test]
async fn a_crash_after_the_change_pays_once() {
    assert_eq!(faults(Method::Crate, crash(), 1).await, [""; 0]);
}

#[tokio::test]
async fn check_then_insert_pays_more_than_once() {
    let found = faults(Method::CheckThenInsert, race(8), 8).await;
    assert!(found.contains(&"8 payments".to_owned()), "{found:?}");
}

#[tokio::test]
async fn storing_the_response_after_the_commit_pays_twice() {
    let found = faults(Method::ResponseAfterCommit, crash(), 1).await;
    assert!(found.contains(&"2 payments".to_owned()), "{found:?}");
}

#[tokio::test]
async fn a_repeated_relative_update_is_applied_twice() {
    let found = faults(Method::RelativeUpdate, crash(), 1).await;
    assert!(found.contains(&"980 cents are left".to_owned()), "{found:?}");
}
