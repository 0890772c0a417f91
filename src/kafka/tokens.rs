//! The token that all producers of the process log in with, with SASL OAUTHBEARER.
//!
//! librdkafka asks for a token when a producer is made, and again at four fifths of the lifetime that it was told. It asks
//! on the thread that hands over delivery reports, which must not wait long: an old token that is still good is renewed on
//! another thread, and handed out if the new one does not come soon. librdkafka then asks again before it ends.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rdkafka::client::OAuthToken;

use super::token_endpoint::{self, TokenError};
use crate::config::{OAuth, Secret};

/// A token is not handed out in its last moments, in which it would arrive too late.
const LEAST_LEFT: Duration = Duration::from_secs(1);
/// It is renewed when so much of its lifetime is over: before librdkafka asks.
const RENEWED_AT: f64 = 0.7;

/// How long delivery reports may wait for a new token while the old one is good.
const RENEWAL_WAIT: Duration = Duration::from_secs(1);

/// The tokens of one process.
pub(super) struct Tokens {
    settings: OAuth,
    held: Mutex<Option<Held>>,
    /// Held by the one who asks the endpoint; whoever else needs a token waits for the same answer.
    asking: Mutex<()>,
    is_renewing: AtomicBool,
    /// Goes with `held`: a renewal has ended.
    renewed: Condvar,
    has_failed: AtomicBool,
}

#[derive(Clone)]
struct Held {
    token: Secret,
    old_from: SystemTime,
    ends: SystemTime,
}

impl Tokens {
    /// Asks for nothing yet.
    pub(super) fn new(settings: OAuth) -> Tokens {
        let (held, asking) = (Mutex::default(), Mutex::default());
        let (is_renewing, has_failed) = (AtomicBool::default(), AtomicBool::default());
        Tokens { settings, held, asking, is_renewing, renewed: Condvar::new(), has_failed }
    }

    /// A token that is good now. Blocks for as long as the endpoint takes if there is none.
    pub(super) fn get(self: &Arc<Self>) -> Result<OAuthToken, TokenError> {
        if let Some(held) = self.good() {
            let is_old = held.old_from <= SystemTime::now();
            let newest = if is_old { self.after_renewal() } else { None };
            return Ok(self.for_librdkafka(&newest.unwrap_or(held)));
        }
        let _one_at_a_time = lock(&self.asking);
        let held = match self.good() {
            Some(held) => held,
            None => self.ask()?,
        };
        Ok(self.for_librdkafka(&held))
    }

    fn good(&self) -> Option<Held> {
        lock(&self.held).clone().filter(|held| SystemTime::now() + LEAST_LEFT < held.ends)
    }

    fn ask(&self) -> Result<Held, TokenError> {
        let asked = SystemTime::now();
        let issued = token_endpoint::ask(&self.settings)?;
        let held = Held {
            token: issued.token,
            old_from: asked + issued.lifetime.mul_f64(RENEWED_AT),
            ends: asked + issued.lifetime,
        };
        *lock(&self.held) = Some(held.clone());
        Ok(held)
    }

    /// What is held when a renewal has ended, or has taken too long.
    fn after_renewal(self: &Arc<Self>) -> Option<Held> {
        self.renew_behind();
        let held = lock(&self.held);
        let waited =
            self.renewed.wait_timeout_while(held, RENEWAL_WAIT, |_| self.is_renewing.load(Ordering::Acquire));
        drop(waited);
        self.good()
    }

    /// The thread ends with the answer of the endpoint, which does not take long. Said once when it fails and once when it
    /// works again; without any good token left, it is the cluster that is not ready.
    fn renew_behind(self: &Arc<Self>) {
        if self.is_renewing.swap(true, Ordering::AcqRel) {
            return;
        }
        let tokens = Arc::clone(self);
        let renew = move || {
            match tokens.ask() {
                Ok(_) if tokens.has_failed.swap(false, Ordering::AcqRel) => {
                    tracing::info!("kafka token renewed");
                }
                Err(error) if !tokens.has_failed.swap(true, Ordering::AcqRel) => tracing::warn!(
                    "kafka token renewal failed, retrying while the current token is valid: {error}"
                ),
                _ => {}
            }
            let _held = lock(&tokens.held);
            tokens.is_renewing.store(false, Ordering::Release);
            tokens.renewed.notify_all();
        };
        if let Err(error) = thread::Builder::new().name("token renewal".to_owned()).spawn(renew) {
            tracing::error!("cannot start the thread that renews the kafka token: {error}");
            self.is_renewing.store(false, Ordering::Release);
        }
    }

    fn for_librdkafka(&self, held: &Held) -> OAuthToken {
        let ends = held.ends.duration_since(UNIX_EPOCH).unwrap_or_default();
        OAuthToken {
            token: held.token.expose().to_owned(),
            // For librdkafka's own use: brokers take it from the token.
            principal_name: self.settings.client_id.clone(),
            lifetime_ms: i64::try_from(ends.as_millis()).unwrap_or(i64::MAX),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
