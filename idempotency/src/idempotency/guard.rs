use std::fmt::{self, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use pg_outbox::__private::Argument;
use pg_outbox::{OutboxClient, OutboxTransaction};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::Calls;
use super::error::Error;
use super::request::{Key, Scope};
use super::response::Response;
use crate::invalid_text::check_text;

/// The maximum length of a phase's name.
pub const PHASE_BYTES_MAX: usize = 255;

/// A request that this caller processes. The caller holds the lock of the key for the lock time.
///
/// Dropping the guard does not release the lock, which then expires. [`Guard::release`] releases it.
///
/// ```no_run
/// # #[cfg(feature = "tokio-postgres")] mod example {
/// # use pg_idempotency::idempotency::*;
/// # async fn example(guard: Guard, client: &mut tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
/// use serde_json::json;
///
/// println!("attempt {} of {} {:?}", guard.attempts(), guard.scope().as_str(), guard.key());
/// let body = guard.request().unwrap_or_default().to_vec(); // if the request keeps it
/// guard.extend(&*client).await?; // before a long call
/// let tx = client.transaction().await?;
/// guard.reach(&tx, "recorded", &json!({ "bytes": body.len() })).await?;
/// guard.finish(&tx, &Response::new(201)).await?;
/// tx.commit().await?;
/// # Ok(()) }
/// # }
/// ```
pub struct Guard {
    pub(super) calls: Arc<Calls>,
    pub(super) lock_for: Duration,
    pub(super) scope: Scope,
    pub(super) key: Key,
    pub(super) token: String,
    pub(super) attempts: u32,
    pub(super) recovery_point: Option<String>,
    pub(super) phases: Map<String, Value>,
    pub(super) request: Option<Vec<u8>>,
    /// Whether a phase may have been committed without its result in `phases`. Another run of it would repeat its effect.
    pub(super) is_uncertain: bool,
    /// The status with which `finish` has succeeded; 0 before. Its transaction may still roll back.
    pub(super) finished_with: AtomicU16,
}

impl Guard {
    /// The scope of the request.
    pub fn scope(&self) -> &Scope {
        &self.scope
    }

    /// The client's key.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The body that was kept with [`Request::keep_body`](super::Request::keep_body).
    pub fn request(&self) -> Option<&[u8]> {
        self.request.as_deref()
    }

    /// The number of attempts, including this one.
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// The last committed phase.
    ///
    /// ```no_run
    /// # #[cfg(feature = "tokio-postgres")] mod example {
    /// # use pg_idempotency::idempotency::*;
    /// # async fn example(guard: Guard, client: &mut tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// if guard.recovery_point() == Some("charged") {
    ///     println!("the provider has been paid");
    /// }
    /// # Ok(()) }
    /// # }
    /// ```
    pub fn recovery_point(&self) -> Option<&str> {
        self.recovery_point.as_deref()
    }

    /// The result of a committed phase.
    ///
    /// ```no_run
    /// # #[cfg(feature = "tokio-postgres")] mod example {
    /// # use pg_idempotency::idempotency::*;
    /// # async fn example(guard: Guard, client: &mut tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// if let Some(payment) = guard.kept::<i64>("recorded")? {
    ///     println!("an earlier attempt has recorded the payment {payment}");
    /// }
    /// # Ok(()) }
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Stored`] if the result has another type.
    pub fn kept<T: DeserializeOwned>(&self, phase: &str) -> Result<Option<T>, Error> {
        let kept = self.phases.get(phase).map(|data| serde_json::from_value(data.clone()));
        kept.transpose().map_err(Error::Stored)
    }

    /// An idempotency key for an external call of this request: 32 hexadecimal digits, the same for each attempt, and different
    /// for each `step`.
    ///
    /// ```no_run
    /// # #[cfg(feature = "tokio-postgres")] mod example {
    /// # use pg_idempotency::idempotency::*;
    /// # async fn example(guard: Guard, client: &mut tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let key = guard.foreign_key("charge"); // for the header Idempotency-Key of the request to the provider
    /// assert_eq!(key.len(), 32);
    /// # Ok(()) }
    /// # }
    /// ```
    ///
    /// The other service must keep its keys for longer than attempts of this request can continue. Otherwise, ask it first whether the step
    /// had its effect.
    pub fn foreign_key(&self, step: &str) -> String {
        let mut digest = Sha256::new();
        for part in [self.scope.as_str(), self.key.as_str(), step] {
            digest.update((part.len() as u64).to_be_bytes());
            digest.update(part);
        }
        let digest = digest.finalize();
        digest.iter().take(16).fold(String::new(), |mut key, byte| {
            let _ = write!(key, "{byte:02x}"); // writing to a String cannot fail
            key
        })
    }

    /// Stores the response in the transaction of the business change, in one round trip.
    ///
    /// # Errors
    ///
    /// After [`Error::Response`], the transaction is still usable. After any other error, PostgreSQL accepts only a rollback.
    /// After [`Error::LockLost`], another attempt has the request.
    pub async fn finish(
        &self,
        transaction: impl OutboxTransaction,
        response: &Response,
    ) -> Result<(), Error> {
        response.check()?;
        let headers = headers(response)?;
        transaction.call(&self.calls.finish, &self.finish_arguments(response, &headers)).await?;
        self.finished_with.store(response.status, Ordering::Relaxed);
        Ok(())
    }

    /// [`Guard::finish`] without a change. Commits immediately.
    #[cfg(feature = "tower")]
    pub(crate) async fn finish_alone(
        &self,
        mut client: impl OutboxClient,
        response: &Response,
    ) -> Result<(), Error> {
        response.check()?;
        let headers = headers(response)?;
        client.call(&self.calls.finish, &self.finish_arguments(response, &headers)).await?;
        Ok(())
    }

    fn finish_arguments<'a>(&'a self, response: &'a Response, headers: &'a str) -> [Argument<'a>; 6] {
        [
            Argument::Text(self.scope.as_str()),
            Argument::Text(self.key.as_str()),
            Argument::Text(&self.token),
            Argument::Number(i32::from(response.status)),
            Argument::Text(headers),
            Argument::Bytes(Some(&response.body)),
        ]
    }

    #[cfg(feature = "tower")]
    pub(crate) fn is_finished_with(&self, status: u16) -> bool {
        self.finished_with.load(Ordering::Relaxed) == status
    }

    /// Records in the transaction that a phase is completed, with its result, and restarts the lock time. Needs one round
    /// trip. [`Guard::phase`] calls it for you. If you call it yourself, only the guards of later attempts know the phase.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the name is invalid. For the others, see [`Guard::finish`].
    pub async fn reach(
        &self,
        transaction: impl OutboxTransaction,
        phase: &str,
        data: &Value,
    ) -> Result<(), Error> {
        check_text("the phase", phase, PHASE_BYTES_MAX)?;
        let data = data.to_string();
        let arguments = [
            Argument::Text(self.scope.as_str()),
            Argument::Text(self.key.as_str()),
            Argument::Text(&self.token),
            Argument::Text(phase),
            Argument::Text(&data),
            Argument::Seconds(self.lock_for.as_secs_f64()),
        ];
        transaction.call(&self.calls.reach, &arguments).await?;
        Ok(())
    }

    /// Restarts the lock time, before a long external call. Commits immediately, in one round trip.
    ///
    /// # Errors
    ///
    /// [`Error::LockLost`] if another attempt has the request. Stop in this case.
    pub async fn extend(&self, mut client: impl OutboxClient) -> Result<(), Error> {
        let arguments = [
            Argument::Text(self.scope.as_str()),
            Argument::Text(self.key.as_str()),
            Argument::Text(&self.token),
            Argument::Seconds(self.lock_for.as_secs_f64()),
        ];
        client.call(&self.calls.extend, &arguments).await?;
        Ok(())
    }

    /// Releases a request that failed before its response, so that a retry can begin immediately. If no phase was committed and
    /// no body is kept, the key counts as unused. With a kept body,
    /// [`Idempotency::abandoned`](super::Idempotency::abandoned) returns the request later. Commits immediately, in one round
    /// trip.
    ///
    /// Do not call it after an external call whose phase was not committed. Let the lock expire, so that a retry or
    /// [`Idempotency::abandoned`](super::Idempotency::abandoned) resumes the request.
    ///
    /// ```no_run
    /// # #[cfg(feature = "tokio-postgres")] mod example {
    /// # use pg_idempotency::idempotency::*;
    /// # async fn example(guard: Guard, client: &mut tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let failed = true; // the work, before its first external call
    /// if failed {
    ///     guard.release(&*client).await?; // then answer 503
    /// }
    /// # Ok(()) }
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Database`]. A lost lock is not an error.
    pub async fn release(self, client: impl OutboxClient) -> Result<(), Error> {
        self.unlock(client, false).await
    }

    /// With `discard`, a kept body does not keep the key, so that [`Idempotency::abandoned`](super::Idempotency::abandoned) does
    /// not return the request.
    pub(crate) async fn unlock(&self, mut client: impl OutboxClient, discard: bool) -> Result<(), Error> {
        let arguments = [
            Argument::Text(self.scope.as_str()),
            Argument::Text(self.key.as_str()),
            Argument::Text(&self.token),
        ];
        let call = if discard { &self.calls.discard } else { &self.calls.release };
        client.call(call, &arguments).await?;
        Ok(())
    }
}

fn headers(response: &Response) -> Result<String, Error> {
    serde_json::to_string(&response.headers).map_err(Error::Stored)
}

/// Does not show the request and the results of phases.
impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("scope", &self.scope)
            .field("key", &self.key)
            .field("attempts", &self.attempts)
            .field("recovery_point", &self.recovery_point)
            .finish_non_exhaustive()
    }
}
