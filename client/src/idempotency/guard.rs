use std::fmt::{self, Write as _};
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::calls::Calls;
use super::error::Error;
use super::request::{Key, Scope};
use super::response::Response;
use crate::call::Argument;
use crate::driver::{OutboxClient, OutboxTransaction};
use crate::invalid_text::check_text;

/// The most bytes of a phase's name.
pub const PHASE_BYTES_MAX: usize = 255;

/// A request that this caller has to work at: it holds the lock of the key, for a time.
///
/// A guard that is dropped lets go of nothing; the lock expires. [`Guard::release`] lets go at once.
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

    /// The body that was kept with [`Request::keep_body`](super::Request::keep_body), for a completer.
    pub fn request(&self) -> Option<&[u8]> {
        self.request.as_deref()
    }

    /// How often somebody has begun, this time included.
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// The last phase that is known to be committed.
    pub fn recovery_point(&self) -> Option<&str> {
        self.recovery_point.as_deref()
    }

    /// What a phase has kept, if it is known to be committed.
    ///
    /// # Errors
    ///
    /// [`Error::Stored`] if it is not of this type.
    pub fn kept<T: DeserializeOwned>(&self, phase: &str) -> Result<Option<T>, Error> {
        let kept = self.phases.get(phase).map(|data| serde_json::from_value(data.clone()));
        kept.transpose().map_err(Error::Stored)
    }

    /// A key for a foreign call of this request: the same for each attempt, another one for each `step`. A provider that
    /// takes idempotency keys then does once what is asked of it twice. 32 hexadecimal digits.
    pub fn foreign_key(&self, step: &str) -> String {
        let mut digest = Sha256::new();
        for part in [self.scope.as_str(), self.key.as_str(), step] {
            digest.update((part.len() as u64).to_be_bytes());
            digest.update(part);
        }
        let digest = digest.finalize();
        digest.iter().take(16).fold(String::new(), |mut key, byte| {
            let _ = write!(key, "{byte:02x}"); // a String takes everything
            key
        })
    }

    /// Stores the response as part of the transaction that makes the business change. One round trip.
    ///
    /// # Errors
    ///
    /// [`Error::Response`] leaves the transaction usable. After any other error Postgres accepts nothing but a rollback;
    /// with [`Error::LockLost`] somebody else has the request.
    pub async fn finish(
        &self,
        transaction: impl OutboxTransaction,
        response: &Response,
    ) -> Result<(), Error> {
        response.check()?;
        let headers = serde_json::to_string(&response.headers).map_err(Error::Stored)?;
        let arguments = [
            Argument::Text(self.scope.as_str()),
            Argument::Text(self.key.as_str()),
            Argument::Text(&self.token),
            Argument::Number(i32::from(response.status)),
            Argument::Text(&headers),
            Argument::Bytes(Some(&response.body)),
        ];
        transaction.call(&self.calls.finish, &arguments).await?;
        Ok(())
    }

    /// Records as part of the transaction that a phase is done, with what later phases need of it, and holds the lock for
    /// its whole time again. One round trip. [`Guard::phase`] does it for you.
    ///
    /// # Errors
    ///
    /// As [`Guard::finish`]; a name that cannot be stored is [`Error::Invalid`].
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

    /// Holds the lock for its whole time again, before a foreign call that takes long. One round trip, committed at once.
    ///
    /// # Errors
    ///
    /// [`Error::LockLost`] if somebody else has the request: stop.
    pub async fn extend(&self, client: impl OutboxClient) -> Result<(), Error> {
        let arguments = [
            Argument::Text(self.scope.as_str()),
            Argument::Text(self.key.as_str()),
            Argument::Text(&self.token),
            Argument::Seconds(self.lock_for.as_secs_f64()),
        ];
        client.call(&self.calls.extend, &arguments).await?;
        Ok(())
    }

    /// Lets go of a request that failed before its response: a retry may begin at once. If no phase was committed, the
    /// key is as if it had never been used, and may even come with another request. One round trip, committed at once.
    ///
    /// Not after a foreign call whose phase was not committed: then leave the lock to expire, so that a completer or a
    /// retry comes back to it.
    ///
    /// # Errors
    ///
    /// [`Error::Database`]. A lock that was lost is none.
    pub async fn release(self, client: impl OutboxClient) -> Result<(), Error> {
        let arguments = [
            Argument::Text(self.scope.as_str()),
            Argument::Text(self.key.as_str()),
            Argument::Text(&self.token),
        ];
        client.call(&self.calls.release, &arguments).await?;
        Ok(())
    }
}

/// Shows nothing of the request and of what phases have kept.
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
