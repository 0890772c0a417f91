//! APIs whose requests are safe to retry: the practice of the header `Idempotency-Key`.
//!
//! A client names its request with a key, and sends it again when it got no answer. The first one does the work and
//! stores its response **in the transaction of the business change**; each repetition is answered with what was stored.
//! Either both are committed or neither is, so the effect happens once, and every attempt has the same answer.
//!
//! ```no_run
//! # #[cfg(feature = "tokio-postgres")] mod example {
//! use pg_outbox::Event;
//! use pg_outbox::idempotency::{self, Begun, Fingerprint, Key, Request, Response, Scope};
//!
//! async fn create_order(
//!     client: &mut tokio_postgres::Client,
//!     user: &str,
//!     idempotency_key: &[u8],
//!     body: &[u8],
//! ) -> Result<Response, Box<dyn std::error::Error>> {
//!     let request = Request::new(
//!         Scope::new("POST", "/orders", user)?,
//!         Key::from_header(idempotency_key)?,
//!         Fingerprint::json(body)?,
//!     );
//!     let guard = match idempotency::begin(&*client, &request).await? {
//!         Begun::Started(guard) => guard,
//!         Begun::Replay(response) => return Ok(response.header("idempotent-replayed", "true")),
//!         Begun::InProgress { retry_after, .. } => {
//!             let seconds = retry_after.as_secs() + 1;
//!             return Ok(Response::new(409).header("retry-after", seconds.to_string()));
//!         }
//!         Begun::Mismatch => return Ok(Response::new(422)),
//!     };
//!     let tx = client.transaction().await?;
//!     let id: i64 = tx.query_one("INSERT INTO shop_order DEFAULT VALUES RETURNING id", &[]).await?.get(0);
//!     pg_outbox::enqueue(&tx, Event::new("order", id, "OrderPlaced").bytes(body)).await?;
//!     let response = Response::new(201).json(&serde_json::json!({ "id": id }))?;
//!     guard.finish(&tx, &response).await?;
//!     tx.commit().await?;
//!     Ok(response)
//! }
//! # }
//! ```
//!
//! The table is made by `outbox-relay migrate --with idempotency`. [`begin`] means the schema `public`;
//! [`Idempotency`] names another one, and how long a lock is held.
//!
//! # What a request can meet
//!
//! [`begin`] commits a lock by itself, so that others see it at once, and says one of four things: [`Begun`]. It is one
//! round trip, [`Guard::finish`] another.
//!
//! - **An error before the response** rolls the business change back and stores nothing. [`Guard::release`] lets a retry
//!   begin at once; without it the lock expires. Definite answers, also those of a client's mistake, may be stored.
//!   Transient ones (408, 425, 429, 5xx) are refused.
//! - **A crash** leaves the lock, which expires after [`Idempotency::lock_for`], 60 s by default, by the clock of
//!   Postgres. Then a retry takes the request over, with a token of its own. If the first one was only slow, its
//!   `finish` fails with [`Error::LockLost`], and its transaction can only be rolled back.
//! - **A lost answer of a COMMIT** is unknown to the server, too: the client asks again, and gets what was stored or
//!   does the work.
//!
//! # Foreign calls
//!
//! What another system did is not rolled back. A request with such calls is a sequence of phases, each a transaction:
//! [`Guard::phase`] commits what the phase did, what it keeps for later and the recovery point together, and an attempt
//! that comes later goes on behind the last one. Give the foreign system the key of [`Guard::foreign_key`], which is the
//! same for each attempt. Commit a phase *before* the first foreign call: it is the record that there may be one.
//! `Guard::phase` is for tokio-postgres; `phase_sqlx`, `phase_sea_orm` and `phase_diesel` do the same with the others.
//!
//! # Requests that nobody finishes
//!
//! If the client does not come back, [`Idempotency::abandoned`] hands the request to the application's own completer,
//! to one worker each, with a pause that doubles with each attempt. The daemon deletes finished requests after `[reaper]
//! idempotency_retention` (24 h), and reports unfinished ones that are older; it never deletes them.
//!
//! # Isolation
//!
//! In READ COMMITTED everything is as described. In REPEATABLE READ and SERIALIZABLE a call that meets a change after its
//! snapshot fails with `40001` instead; begin the transaction again.
//!
//! # Limits
//!
//! A scope has at most 512 bytes, a key 255 characters of printable ASCII, a kept request and a stored body 1 MiB each,
//! stored headers 16 KiB, the name of a phase 255 bytes. Beyond them are typed errors, before Postgres is asked.
//!
//! # Rights
//!
//! SELECT, INSERT, UPDATE and DELETE on the table `idempotency_key`.

mod calls;
mod error;
mod fingerprint;
mod guard;
mod phase;
mod request;
mod response;

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use serde_json::{Map, Value};

use crate::call::{Answer, Argument, Schema};
use crate::driver::OutboxClient;
use crate::table::TableNameError;
use calls::Calls;

pub use error::{Error, PhaseError};
pub use fingerprint::{DEPTH_MAX, Fingerprint};
pub use guard::{Guard, PHASE_BYTES_MAX};
pub use request::{KEY_BYTES_MAX, Key, Request, SCOPE_BYTES_MAX, Scope};
pub use response::{BODY_BYTES_MAX, HEADER_BYTES_MAX, InvalidResponse, Response};

/// The most bytes of a request's body that is kept.
pub const REQUEST_BYTES_MAX: usize = 1024 * 1024;

const LOCK_FOR: Duration = Duration::from_secs(60);
const LOCK_FOR_MAX: Duration = Duration::from_secs(86_400);
const ATTEMPTS_MAX: u16 = 20;

/// What became of the beginning of a request.
#[derive(Debug)]
#[must_use = "only a request that was started may be worked at"]
pub enum Begun {
    /// Work at it, then [`Guard::finish`].
    Started(Guard),
    /// It is finished: answer with this.
    Replay(Response),
    /// Somebody else is at it. Answer 409 with `Retry-After`.
    InProgress {
        /// For how long, by the clock of Postgres.
        since: Duration,
        /// When its lock expires at the latest, if it is not held anew; mostly it is finished far sooner.
        retry_after: Duration,
    },
    /// The key was used for another request. Answer 422.
    Mismatch,
}

/// The idempotency keys of a schema. Clones are cheap.
#[derive(Debug, Clone)]
pub struct Idempotency {
    calls: Arc<Calls>,
    lock_for: Duration,
    attempts_max: u16,
}

static DEFAULT: LazyLock<Idempotency> = LazyLock::new(|| Idempotency::of(&Schema::public()));

impl Default for Idempotency {
    fn default() -> Idempotency {
        DEFAULT.clone()
    }
}

impl Idempotency {
    /// The keys in this schema: `app` or, for other than lower-case names, `"My App"`.
    ///
    /// # Errors
    ///
    /// If that is not the name of a schema.
    pub fn in_schema(schema: &str) -> Result<Idempotency, TableNameError> {
        Ok(Idempotency::of(&Schema::parse(schema)?))
    }

    fn of(schema: &Schema) -> Idempotency {
        let calls = Arc::new(Calls::new(schema));
        Idempotency { calls, lock_for: LOCK_FOR, attempts_max: ATTEMPTS_MAX }
    }

    /// Holds locks for this long instead of 60 s: longer than a phase with its foreign call ever takes, since a request
    /// that is slower can be taken over while it works.
    ///
    /// # Errors
    ///
    /// [`Error::LockTime`] for nothing, and for more than a day.
    pub fn lock_for(self, lock_for: Duration) -> Result<Idempotency, Error> {
        if lock_for < Duration::from_millis(1) || lock_for > LOCK_FOR_MAX {
            return Err(Error::LockTime);
        }
        Ok(Idempotency { lock_for, ..self })
    }

    /// Leaves requests to a person after this many attempts, instead of 20.
    pub fn attempts_max(self, attempts_max: u16) -> Idempotency {
        Idempotency { attempts_max, ..self }
    }

    /// Begins a request: locks its key, or says why there is nothing to do. Committed at once, in one round trip.
    ///
    /// Dropping the future leaves open whether the key is locked; the lock expires.
    ///
    /// # Errors
    ///
    /// [`Error::Database`].
    pub async fn begin(&self, client: impl OutboxClient, request: &Request) -> Result<Begun, Error> {
        let arguments = [
            Argument::Text(request.scope.as_str()),
            Argument::Text(request.key.as_str()),
            Argument::Bytes(Some(request.fingerprint.as_bytes())),
            Argument::Seconds(self.lock_for.as_secs_f64()),
            Argument::Bytes(request.body.as_deref()),
        ];
        let answers = client.call(&self.calls.begin, &arguments).await?;
        let Some(mut answer) = answers.into_iter().next() else { unreachable!("a request has an outcome") };
        match answer.text().as_deref() {
            Some("started") => {
                let guard = self.guard(&mut answer, request.scope.clone(), request.key.clone())?;
                Ok(Begun::Started(Guard { request: request.body.clone(), ..guard }))
            }
            Some("replay") => Ok(Begun::Replay(replay(answer)?)),
            Some("in_progress") => Ok(in_progress(answer)),
            Some("mismatch") => Ok(Begun::Mismatch),
            other => unreachable!("the function knows no outcome {other:?}"),
        }
    }

    /// Takes over up to `at_most` requests that were begun longer than `older_than` ago, and that nobody is at. Each
    /// goes to one caller, however many ask. Finish it, or let go; what is neither comes again after the lock's time and
    /// a pause of up to an hour. Take no more than can be finished within the lock's time.
    ///
    /// # Errors
    ///
    /// [`Error::Database`].
    pub async fn abandoned(
        &self,
        client: impl OutboxClient,
        older_than: Duration,
        at_most: u16,
    ) -> Result<Vec<Guard>, Error> {
        let arguments = [
            Argument::Seconds(older_than.as_secs_f64()),
            Argument::Seconds(self.lock_for.as_secs_f64()),
            Argument::Number(i32::from(at_most)),
            Argument::Number(i32::from(self.attempts_max)),
        ];
        let answers = client.call(&self.calls.abandoned, &arguments).await?;
        let guard = |mut answer: Answer| -> Result<Guard, Error> {
            let scope = Scope::stored(answer.text().unwrap_or_default());
            let key = Key::stored(answer.text().unwrap_or_default());
            let guard = self.guard(&mut answer, scope, key)?;
            Ok(Guard { request: answer.bytes(), ..guard })
        };
        answers.into_iter().map(guard).collect()
    }

    /// From token, attempts, recovery point and phases.
    fn guard(&self, answer: &mut Answer, scope: Scope, key: Key) -> Result<Guard, Error> {
        Ok(Guard {
            calls: Arc::clone(&self.calls),
            lock_for: self.lock_for,
            scope,
            key,
            token: answer.text().unwrap_or_default(),
            attempts: answer.number().map_or(0, i32::unsigned_abs),
            recovery_point: answer.text(),
            phases: phases(answer.text())?,
            request: None,
        })
    }
}

fn phases(json: Option<String>) -> Result<Map<String, Value>, Error> {
    json.map_or(Ok(Map::new()), |json| serde_json::from_str(&json)).map_err(Error::Stored)
}

/// Skips what stands before the response.
fn replay(mut answer: Answer) -> Result<Response, Error> {
    let (_token, _attempts, _recovery_point, _phases) =
        (answer.text(), answer.number(), answer.text(), answer.text());
    let (_in_progress, _retry_after) = (answer.seconds(), answer.seconds());
    let status = answer.number().and_then(|status| u16::try_from(status).ok()).unwrap_or(0);
    let headers = answer.text().map_or(Ok(Default::default()), |headers| serde_json::from_str(&headers));
    Ok(Response {
        status,
        headers: headers.map_err(Error::Stored)?,
        body: answer.bytes().unwrap_or_default(),
    })
}

fn in_progress(mut answer: Answer) -> Begun {
    let (_token, _attempts, _recovery_point, _phases) =
        (answer.text(), answer.number(), answer.text(), answer.text());
    let mut duration = || Duration::try_from_secs_f64(answer.seconds().unwrap_or(0.0)).unwrap_or_default();
    Begun::InProgress { since: duration(), retry_after: duration() }
}

/// Begins a request in the schema `public`: see [`Idempotency::begin`].
///
/// # Errors
///
/// See [`Idempotency::begin`].
pub async fn begin(client: impl OutboxClient, request: &Request) -> Result<Begun, Error> {
    DEFAULT.begin(client, request).await
}
