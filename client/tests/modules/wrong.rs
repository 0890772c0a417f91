//! One harness and four ways to make a payment: the one of this crate, and three that are often written by hand. The
//! harness has to detect the bugs of those three, otherwise it would prove nothing about the first.

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
    /// Checks whether a response exists, and does the work if there is none.
    CheckThenInsert,
    /// Stores the response in a second transaction after the change.
    ResponseAfterCommit,
    /// Checks nothing: `SET cents = cents - 10`.
    RelativeUpdate,
}

/// What goes wrong.
#[derive(Clone)]
enum Fault {
    /// No failure, but all clients have checked before any of them does the work.
    Race(Arc<Barrier>),
    /// The first client crashes after the change, which is committed by then if the way commits it separately.
    Crash(Arc<AtomicBool>),
}

impl Fault {
    async fn after_the_check(&self) {
        if let Fault::Race(barrier) = self {
            barrier.wait().await;
        }
    }

    fn crashes_after_the_change(&self) -> bool {
        matches!(self, Fault::Crash(crashed) if !crashed.swap(true, Ordering::SeqCst))
    }
}

/// The application crashed and lost its connection.
struct Crashed;

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

    /// One attempt. `None` asks for another one.
    async fn attempt(&self, client: &mut Client, checked: &mut bool) -> Result<Option<String>, Crashed> {
        match self.way {
            Way::Ours => self.ours(client, checked).await,
            _ => self.by_hand(client, checked).await,
        }
    }

    async fn ours(&self, client: &mut Client, checked: &mut bool) -> Result<Option<String>, Crashed> {
        let scope = Scope::new("POST", "/payments", "user 1").unwrap();
        let request = Request::new(scope, Key::new("k").unwrap(), Fingerprint::bytes(b"10"));
        let begun = self.idempotency.begin(&*client, &request).await.unwrap();
        self.wait_once(checked).await;
        let guard = match begun {
            Begun::Started(guard) => guard,
            Begun::Replay(response) => {
                return Ok(Some(String::from_utf8(response.bytes().to_vec()).unwrap()));
            }
            Begun::InProgress { .. } => return Ok(None),
            Begun::Mismatch => panic!("all requests are the same"),
        };
        let tx = client.transaction().await.unwrap();
        let answer = change(&tx, &self.schema).await;
        if self.fault.crashes_after_the_change() {
            return Err(Crashed); // dropping the transaction rolls it back, as a closed connection does
        }
        guard.finish(&tx, &Response::new(201).body(answer.clone())).await.unwrap();
        tx.commit().await.unwrap();
        Ok(Some(answer))
    }

    async fn by_hand(&self, client: &mut Client, checked: &mut bool) -> Result<Option<String>, Crashed> {
        let stored = self.sql("SELECT answer FROM {s}.stored WHERE key = 'k'");
        let store = self.sql("INSERT INTO {s}.stored VALUES ('k', $1) ON CONFLICT DO NOTHING");
        if self.way != Way::RelativeUpdate
            && let Some(row) = client.query_opt(&stored, &[]).await.unwrap()
        {
            return Ok(Some(row.get(0)));
        }
        self.wait_once(checked).await;
        let tx = client.transaction().await.unwrap();
        let answer = change(&tx, &self.schema).await;
        if self.way == Way::CheckThenInsert {
            tx.execute(&store, &[&answer]).await.unwrap();
        }
        tx.commit().await.unwrap();
        if self.fault.crashes_after_the_change() {
            return Err(Crashed);
        }
        if self.way == Way::ResponseAfterCommit {
            client.execute(&store, &[&answer]).await.unwrap();
        }
        Ok(Some(answer))
    }

    async fn wait_once(&self, checked: &mut bool) {
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

/// Lets each of `clients` repeat the same request until it gets an answer, and returns what is wrong afterwards.
async fn problems(way: Way, fault: Fault, clients: usize) -> Vec<String> {
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
    // Long enough that no working client loses its lock, or short enough to wait for after a crash.
    let lock_for = Duration::from_secs(if matches!(fault, Fault::Race(_)) { 600 } else { 1 });
    let idempotency = db.idempotency.clone().lock_for(lock_for).unwrap();
    let payment = Arc::new(Payment { way, fault, schema: db.schema.clone(), idempotency });
    let senders = connected.into_iter().map(|mut client| {
        let payment = Arc::clone(&payment);
        tokio::spawn(async move {
            let mut checked = false;
            loop {
                match payment.attempt(&mut client, &mut checked).await {
                    Ok(Some(answer)) => return answer,
                    Ok(None) => tokio::time::sleep(Duration::from_millis(20)).await, // as Retry-After tells the client
                    Err(Crashed) => client = connect().await,
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

    let mut problems = Vec::new();
    let payments = db.number("SELECT count(*) FROM {s}.payment").await;
    let cents = db.number("SELECT cents FROM {s}.account").await;
    if payments != 1 {
        problems.push(format!("{payments} payments"));
    }
    if cents != 990 {
        problems.push(format!("{cents} cents are left"));
    }
    if answers.len() != 1 {
        problems.push(format!("{} different answers", answers.len()));
    }
    db.clean_up().await;
    problems
}

fn race(clients: usize) -> Fault {
    Fault::Race(Arc::new(Barrier::new(clients)))
}

fn crash() -> Fault {
    Fault::Crash(Arc::new(AtomicBool::new(false)))
}

#[tokio::test]
async fn of_64_clients_with_one_key_one_pays_and_all_get_its_answer() {
    assert_eq!(problems(Way::Ours, race(64), 64).await, [""; 0]);
}

#[tokio::test]
async fn a_crash_after_the_change_pays_once() {
    assert_eq!(problems(Way::Ours, crash(), 1).await, [""; 0]);
}

#[tokio::test]
async fn checking_before_working_pays_twice() {
    let problems = problems(Way::CheckThenInsert, race(8), 8).await;
    assert!(problems.contains(&"8 payments".to_owned()), "{problems:?}");
}

#[tokio::test]
async fn storing_the_response_after_the_commit_pays_twice() {
    let problems = problems(Way::ResponseAfterCommit, crash(), 1).await;
    assert!(problems.contains(&"2 payments".to_owned()), "{problems:?}");
}

#[tokio::test]
async fn a_repeated_relative_update_is_applied_twice() {
    let problems = problems(Way::RelativeUpdate, crash(), 1).await;
    assert!(problems.contains(&"980 cents are left".to_owned()), "{problems:?}");
}
