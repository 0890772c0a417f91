//! A client that makes payments and retries, with the same key, until it has an answer. It writes a journal entry
//! before each request, so that it knows after a crash which payment was in progress.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::Context;
use pg_idempotency::retry::{Classify, Failure, Policy, Verdict};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::pay::Order;
use crate::provider::CENTS_MAX;

/// The timeout of one attempt.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);
const ASK_WITHIN: Duration = Duration::from_secs(180);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
const ACCOUNTS: u32 = 10;

// The number of payments out of a hundred that are
/// - sent twice at the same time, as by a double click,
const CONCURRENT_DUPLICATES: u32 = 10;
/// - sent again after they were answered,
const LATE_DUPLICATES: u32 = 15;
/// - followed by another payment with the same key, by mistake,
const REUSED_KEYS: u32 = 8;
/// - larger than the provider approves.
const DECLINED: u32 = 10;

/// The reason why there is no answer yet.
#[derive(Debug, Error)]
enum NoAnswer {
    #[error("the API did not answer")]
    Lost(#[source] reqwest::Error),
    /// 408, 409, 425, 429, or 500 and above.
    #[error("the API answered {0}")]
    NotNow(u16),
}

impl Classify for NoAnswer {
    fn verdict(&self) -> Verdict {
        match self {
            NoAnswer::Lost(error) if error.is_connect() => Verdict::Again,
            NoAnswer::NotNow(409 | 425 | 429) => Verdict::Again,
            NoAnswer::Lost(_) | NoAnswer::NotNow(_) => Verdict::Unknown,
        }
    }
}

/// A line of the journal.
#[derive(Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
enum Entry {
    /// Written before the first attempt.
    Asked {
        number: u64,
        key: String,
        reference: String,
        account: String,
        cents: i64,
    },
    Answer {
        number: u64,
        key: String,
        status: u16,
        body: String,
        replayed: bool,
        attempts: u32,
    },
    /// The answer to another body with the same key.
    Mismatch {
        key: String,
        status: u16,
    },
}

pub struct Client {
    http: reqwest::Client,
    apis: Vec<String>,
    name: String,
    journal: File,
    /// The next payment, and whether it was already requested.
    next: u64,
    asked: bool,
}

impl Client {
    /// Continues where the journal in this file ends.
    pub fn new(name: String, apis: Vec<String>, journal: &Path) -> anyhow::Result<Client> {
        let (mut next, mut asked) = (1, false);
        if let Ok(before) = File::open(journal) {
            for line in BufReader::new(before).lines() {
                match serde_json::from_str(&line?)? {
                    Entry::Asked { number, .. } => (next, asked) = (number, true),
                    Entry::Answer { number, .. } => (next, asked) = (number + 1, false),
                    Entry::Mismatch { .. } => {}
                }
            }
        }
        let journal =
            File::options().create(true).append(true).open(journal).context("opening the journal")?;
        let http = reqwest::Client::builder().timeout(ANSWER_WITHIN).build()?;
        Ok(Client { http, apis, name, journal, next, asked })
    }

    /// Makes payments up to this number, or until `stop`. It finishes the current payment first.
    pub async fn run(mut self, payments: u64, stop: impl Future<Output = ()>) -> anyhow::Result<()> {
        tokio::pin!(stop);
        if self.next > payments {
            eprintln!(
                "the journal has an answer to each of the {payments} payments; use another --journal to begin again"
            );
        }
        while self.next <= payments {
            self.pay().await?;
            let pause = tokio::time::sleep(Duration::from_millis(fastrand::u64(..20)));
            tokio::select! {
                () = &mut stop => break,
                () = pause => {}
            }
        }
        Ok(())
    }

    async fn pay(&mut self) -> anyhow::Result<()> {
        let number = self.next;
        // A real client would generate a UUID and store it with the order.
        let key = format!("{}-{number}", self.name);
        let order = self.order(number, &key);
        if !self.asked {
            let Order { reference, account, cents } = &order;
            let (reference, account) = (reference.clone(), account.clone());
            self.note(&Entry::Asked { number, key: key.clone(), reference, account, cents: *cents })?;
        }
        if of_hundred(CONCURRENT_DUPLICATES) {
            let (first, second) = tokio::join!(self.ask(&key, &order), self.ask(&key, &order));
            self.note(&first?.entry(number, &key))?;
            self.note(&second?.entry(number, &key))?;
        } else {
            let answer = self.ask(&key, &order).await?;
            self.note(&answer.entry(number, &key))?;
        }
        (self.next, self.asked) = (number + 1, false);
        if of_hundred(LATE_DUPLICATES) {
            let answer = self.ask(&key, &order).await?;
            self.note(&answer.entry(number, &key))?;
        }
        if of_hundred(REUSED_KEYS) {
            let other = Order { cents: order.cents + 1, ..order };
            let status = self.ask(&key, &other).await?.status;
            self.note(&Entry::Mismatch { key, status })?;
        }
        Ok(())
    }

    /// The same order for the same number, even after a crash.
    fn order(&self, number: u64, key: &str) -> Order {
        let mut random = fastrand::Rng::with_seed(number);
        let too_much = random.u32(..100) < DECLINED;
        let cents = random.i64(1..=CENTS_MAX) + if too_much { CENTS_MAX } else { 0 };
        let account = format!("account-{}", random.u32(1..=ACCOUNTS));
        Order { reference: format!("invoice of {key}"), account, cents }
    }

    /// Retries until there is a definite answer. Each attempt goes to a random API.
    async fn ask(&self, key: &str, order: &Order) -> Result<Answer, Failure<NoAnswer>> {
        let policy = Policy::default().attempts_max(u32::MAX).longest_pause(LONGEST_PAUSE).within(ASK_WITHIN);
        let attempts = AtomicU32::new(0);
        let attempt = |key| {
            attempts.fetch_add(1, Ordering::Relaxed);
            self.ask_once(key, order)
        };
        let answer = policy.keyed(key).run(attempt).await?;
        Ok(Answer { attempts: attempts.into_inner(), ..answer })
    }

    async fn ask_once(&self, key: &str, order: &Order) -> Result<Answer, NoAnswer> {
        let api = fastrand::choice(&self.apis).map_or("", String::as_str);
        let request = self.http.post(format!("{api}/payments")).json(order);
        let sent = request.header("idempotency-key", key).header("x-user", &self.name).send().await;
        let response = sent.map_err(NoAnswer::Lost)?;
        let status = response.status().as_u16();
        if matches!(status, 408 | 409 | 425 | 429) || status >= 500 {
            return Err(NoAnswer::NotNow(status));
        }
        let replayed = response.headers().contains_key("idempotent-replayed");
        let body = response.text().await.map_err(NoAnswer::Lost)?;
        Ok(Answer { status, body, replayed, attempts: 1 })
    }

    fn note(&mut self, entry: &Entry) -> anyhow::Result<()> {
        let line = serde_json::to_string(entry)? + "\n";
        self.journal.write_all(line.as_bytes()).context("writing the journal")
    }
}

/// A definite answer.
struct Answer {
    status: u16,
    body: String,
    replayed: bool,
    attempts: u32,
}

impl Answer {
    fn entry(self, number: u64, key: &str) -> Entry {
        let Answer { status, body, replayed, attempts } = self;
        Entry::Answer { number, key: key.to_owned(), status, body, replayed, attempts }
    }
}

fn of_hundred(share: u32) -> bool {
    fastrand::u32(..100) < share
}
