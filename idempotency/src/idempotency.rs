//! Makes the requests of an API safe to retry, with the header `Idempotency-Key`.
//!
//! A client sends a key with its request, and repeats the request if it receives no response. The first request does the work
//! and stores its response **in the transaction of the business change**. Repeated requests return the stored response. The
//! change and the response are committed together or not at all, so the effect happens once.
//!
//! ```no_run
//! # #[cfg(feature = "tokio-postgres")] mod example {
//! use pg_outbox::Event;
//! use pg_idempotency::idempotency::{self, Begun, Fingerprint, Key, Request, Response, Scope};
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
//! Create the table with `outbox-relay migrate --with idempotency`. [`begin`] uses the schema `public`. With [`Idempotency`],
//! you can set another schema and the lock time.
//!
//! With the feature `tower`, the layer in `pg_idempotency::tower` does this for axum and other tower servers.
//!
//! # Failures
//!
//! [`begin`] commits a lock that other sessions see immediately, and returns [`Begun`]. It needs one round trip, as does
//! [`Guard::finish`].
//!
//! - **An error before the response** rolls back the business change and stores nothing. With [`Guard::release`], a retry can
//!   begin immediately; otherwise the lock must expire. You can store final responses, including client errors. Transient
//!   ones (408, 425, 429, 5xx) are rejected.
//! - **After a crash**, the lock expires after [`Idempotency::lock_for`], 60 s by default, by the server's clock. Then a retry
//!   takes over the request with its own token. If the first attempt was only slow, its `finish` fails with
//!   [`Error::LockLost`], and its transaction can only be rolled back.
//! - **If the answer to COMMIT is lost**, the client repeats the request. If the COMMIT took effect, it receives the stored
//!   response. Otherwise, the repeated request does the work. Until that is decided, and after a rollback until the lock
//!   expires, [`begin`] returns [`Begun::InProgress`].
//!
//! # Calls to external systems
//!
//! Effects in other systems are not rolled back. Split a request with such calls into phases, each with its own transaction.
//! [`Guard::phase`] commits the change, the result of the phase and the *recovery point* (the name of the phase) together. A later attempt resumes
//! after the last committed phase. Pass the key of [`Guard::foreign_key`] to the external system: it is the same for each
//! attempt. Commit a phase *before* the first external call, to record that the call may have happened. `Guard::phase` works with
//! every asynchronous driver, and `Guard::phase_blocking` with the synchronous ones.
//!
//! # Abandoned requests
//!
//! If the client does not retry, [`Idempotency::abandoned`] returns the request to one worker of the application, which
//! completes it. The pause before it is returned again doubles with each attempt. After [`Idempotency::attempts_max`] attempts,
//! which include those of clients, it is not returned any more. The relay deletes finished requests after
//! `[reaper] idempotency_retention` (24 h). It reports older unfinished requests, and deletes those without a committed phase
//! after 30 days.
//!
//! # Isolation
//!
//! This describes READ COMMITTED. In REPEATABLE READ and SERIALIZABLE, a call fails with `40001` if it depends on a change
//! that was committed after its snapshot. Begin the transaction again. [`begin`] answers as of its snapshot, so call it in a
//! transaction of its own.
//!
//! # Limits
//!
//! A scope has at most 512 bytes, a key 255 characters of printable ASCII, a kept request and a stored body 1 MiB each,
//! stored headers 16 KiB, and the name of a phase 255 bytes. Larger values cause typed errors, before a statement is sent.
//! The results of all phases of a request have at most 1 MiB together, and contain no U+0000. The server checks this when a phase is
//! recorded, after its effect. Store a reference to larger results.
//!
//! # Privileges
//!
//! Membership in the group `outbox_relay_idempotency`. `outbox-relay migrate --print-roles` prints the SQL that creates
//! it, and so does `--print-roles --only idempotency` in a database without an outbox. The group can execute the functions and has no
//! privilege on the table. A key belongs to the role that logged in, or to its service in the table `idempotency_service`. No
//! other service sees it.

mod error;
mod fingerprint;
mod guard;
#[cfg(feature = "tower")]
mod http;
mod phase;
mod request;
mod response;

use std::sync::atomic::AtomicU16;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use pg_outbox::__private::{Answer, Argument, Kind, Statement};
use pg_outbox::{OutboxClient, TableNameError};
use serde_json::{Map, Value};

use crate::database::Schema;

pub use error::{Error, PhaseError};
pub use fingerprint::{DEPTH_MAX, Fingerprint};
pub use guard::{Guard, PHASE_BYTES_MAX};
pub use phase::{BlockingPhaseConnection, PhaseConnection};
pub use request::{KEY_BYTES_MAX, Key, Request, SCOPE_BYTES_MAX, Scope};
#[cfg(feature = "tower")]
pub(crate) use response::is_transient;
pub use response::{BODY_BYTES_MAX, HEADER_BYTES_MAX, InvalidResponse, Response};

/// The maximum size of a kept request body.
pub const REQUEST_BYTES_MAX: usize = 1024 * 1024;

const LOCK_FOR: Duration = Duration::from_secs(60);
const LOCK_FOR_MAX: Duration = Duration::from_secs(86_400);
const ATTEMPTS_MAX: u16 = 20;

/// The result of beginning a request.
///
/// ```
/// use pg_idempotency::idempotency::Begun;
///
/// /// The status to answer with, unless the request must be processed.
/// fn status(begun: &Begun) -> Option<u16> {
///     match begun {
///         Begun::Started(_) => None,
///         Begun::Replay(response) => Some(response.status()),
///         Begun::InProgress { .. } => Some(409),
///         Begun::Mismatch => Some(422),
///     }
/// }
/// ```
#[derive(Debug)]
#[must_use = "only a started request may be processed"]
pub enum Begun {
    /// Process the request, then call [`Guard::finish`].
    Started(Guard),
    /// The request is finished. Return this response.
    Replay(Response),
    /// Another attempt is in progress. Return 409 with `Retry-After`.
    InProgress {
        /// How long it has been in progress.
        since: Duration,
        /// The time until its lock expires, unless it is extended. Usually the request finishes much sooner.
        retry_after: Duration,
    },
    /// The key was used for another request. Return 422.
    Mismatch,
}

/// The idempotency keys of a schema. Clones are cheap.
///
/// ```no_run
/// # #[cfg(feature = "tokio-postgres")] mod example {
/// # async fn example(client: &tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use pg_idempotency::idempotency::Idempotency;
///
/// let idempotency = Idempotency::in_schema("app")?.lock_for(Duration::from_secs(30))?.attempts_max(10);
/// // In a worker: the requests that no client has repeated for a minute.
/// for guard in idempotency.abandoned(client, Duration::from_secs(60), 10).await? {
///     println!("complete {:?} after {:?}", guard.scope(), guard.recovery_point());
/// }
/// # Ok(()) }
/// # }
/// ```
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
    /// The keys in this schema: `app`, or `"My App"` if the name is not lower-case.
    ///
    /// # Errors
    ///
    /// If this is not a valid name.
    pub fn in_schema(schema: &str) -> Result<Idempotency, TableNameError> {
        Ok(Idempotency::of(&Schema::parse(schema)?))
    }

    fn of(schema: &Schema) -> Idempotency {
        let calls = Arc::new(Calls::new(schema));
        Idempotency { calls, lock_for: LOCK_FOR, attempts_max: ATTEMPTS_MAX }
    }

    /// Sets the lock time, which is 60 s by default. Set it to more than a phase with its external call ever takes, because
    /// another attempt can take over a slower request.
    ///
    /// # Errors
    ///
    /// [`Error::LockTime`] for less than 1 ms or more than a day.
    pub fn lock_for(self, lock_for: Duration) -> Result<Idempotency, Error> {
        if lock_for < Duration::from_millis(1) || lock_for > LOCK_FOR_MAX {
            return Err(Error::LockTime);
        }
        Ok(Idempotency { lock_for, ..self })
    }

    /// Sets the number of attempts after which [`Idempotency::abandoned`] skips a request, which is 20 by default. Attempts of
    /// clients count too, so set it to more than a client ever makes. Nothing reports that a request has reached the number,
    /// except that it stays unfinished.
    pub fn attempts_max(self, attempts_max: u16) -> Idempotency {
        Idempotency { attempts_max, ..self }
    }

    /// Begins a request: locks its key, or returns why it cannot be started. Commits immediately, in one round trip.
    ///
    /// If the future is dropped, the key may be locked until the lock expires.
    ///
    /// ```no_run
    /// # #[cfg(feature = "tokio-postgres")] mod example {
    /// # async fn example(client: &tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// use pg_idempotency::idempotency::{Begun, Fingerprint, Idempotency, Key, Request, Scope};
    ///
    /// let scope = Scope::new("POST", "/orders", "user 7")?;
    /// let request = Request::new(scope, Key::new("8e03978e-40d5")?, Fingerprint::json(b"{}")?);
    /// match Idempotency::in_schema("app")?.begin(client, &request).await? {
    ///     Begun::Started(guard) => println!("attempt {}", guard.attempts()),
    ///     other => println!("answered without the work: {other:?}"),
    /// }
    /// # Ok(()) }
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Database`].
    pub async fn begin(&self, mut client: impl OutboxClient, request: &Request) -> Result<Begun, Error> {
        let arguments = [
            Argument::Text(request.scope.as_str()),
            Argument::Text(request.key.as_str()),
            Argument::Bytes(Some(request.fingerprint.as_bytes())),
            Argument::Seconds(self.lock_for.as_secs_f64()),
            Argument::Bytes(request.body.as_deref()),
        ];
        let answers = client.call(&self.calls.begin, &arguments).await?;
        let Some(mut answer) = answers.into_iter().next() else {
            unreachable!("the function returns one row")
        };
        match answer.text().as_deref() {
            Some("started") => {
                let guard = self.guard(&mut answer, request.scope.clone(), request.key.clone())?;
                Ok(Begun::Started(Guard { request: request.body.clone(), ..guard }))
            }
            Some("replay") => Ok(Begun::Replay(replay(answer)?)),
            Some("in_progress") => Ok(in_progress(answer)),
            Some("mismatch") => Ok(Begun::Mismatch),
            other => unreachable!("the function does not return the outcome {other:?}"),
        }
    }

    /// Takes over up to `at_most` requests that began longer than `older_than` ago and are not in progress. Each request is
    /// returned to one caller. Finish or release it. Otherwise it is returned again after the lock time and a pause of up to an
    /// hour. Do not take over more requests than you can finish within the lock time.
    ///
    /// It returns the requests of all scopes of the service, also those without a kept body. Check [`Guard::scope`] and
    /// [`Guard::request`] before you complete a request, and skip one that this worker does not know. A skipped request uses up
    /// an attempt too, so one worker should complete the requests of all scopes.
    ///
    /// # Errors
    ///
    /// [`Error::Database`].
    pub async fn abandoned(
        &self,
        mut client: impl OutboxClient,
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

    /// From the columns token, attempts, recovery point and phases.
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
            is_uncertain: false,
            finished_with: AtomicU16::new(0),
        })
    }
}

/// The module's statements in one schema.
#[derive(Debug)]
struct Calls {
    begin: Statement,
    finish: Statement,
    reach: Statement,
    extend: Statement,
    release: Statement,
    discard: Statement,
    abandoned: Statement,
}

impl Calls {
    fn new(schema: &Schema) -> Calls {
        use Kind::{Bytes, Flag, Number, Seconds, Text};
        Calls {
            begin: schema.call("SELECT outcome, token::text, attempts, recovery_point, phases::text, in_progress_seconds,
                        retry_after_seconds, status, headers::text, body
                 FROM {schema}.idempotency_begin($1, $2, $3, make_interval(secs => $4), $5)",
                &[Text, Text, Number, Text, Text, Seconds, Seconds, Number, Text, Bytes],
            ),
            finish: schema.call("SELECT {schema}.idempotency_finish($1, $2, $3::text::uuid, $4, $5::text::jsonb, $6)",
                &[],
            ),
            reach: schema.call("SELECT {schema}.idempotency_reach($1, $2, $3::text::uuid, $4, $5::text::jsonb,
                                                   make_interval(secs => $6))",
                &[],
            ),
            extend: schema.call("SELECT {schema}.idempotency_extend($1, $2, $3::text::uuid, make_interval(secs => $4))",
                &[],
            ),
            release: schema.call("SELECT {schema}.idempotency_release($1, $2, $3::text::uuid)",
                &[Flag],
            ),
            discard: schema.call("SELECT {schema}.idempotency_release($1, $2, $3::text::uuid, true)",
                &[Flag],
            ),
            abandoned: schema.call("SELECT scope, key, token::text, attempts, recovery_point, phases::text, request
                 FROM {schema}.idempotency_abandoned(make_interval(secs => $1), make_interval(secs => $2), $3, $4)",
                &[Text, Text, Text, Number, Text, Text, Bytes],
            ),
        }
    }
}

fn phases(json: Option<String>) -> Result<Map<String, Value>, Error> {
    json.map_or(Ok(Map::new()), |json| serde_json::from_str(&json)).map_err(Error::Stored)
}

/// Skips the columns before the response.
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
