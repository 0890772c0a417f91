//! The token with which the clients of a cluster authenticate (SASL OAUTHBEARER).
//!
//! librdkafka requests a token when a producer is created, and again after four fifths of the token's lifetime. It does so on
//! the thread that delivers reports, which must not wait long. So a token that is still valid is renewed on another thread,
//! and returned if the new one does not arrive soon. librdkafka then asks again before it expires.
//!
//! There is one [`TokenSource`] for each way to get a token.

use crate::oauth::Endpoint;
use crate::options::{Aws, Kafka};
use crate::reports::lock;
use rdkafka::client::OAuthToken;
use relay::failure::KafkaFailure;
#[cfg(not(feature = "aws"))]
use relay::reason::CONFIGURATION;
use settings::secret::Secret;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use std::{fmt, thread};
use tokio::runtime;

/// A token counts as expired this long before its end.
const LEAST_LEFT: Duration = Duration::from_secs(1);
/// A token is renewed after this share of its lifetime, before librdkafka asks.
const RENEWED_AT: f64 = 0.7;
/// A token that is rejected sooner than this after it was issued is used again, so that brokers that reject every token do not
/// cause a request for each attempt to log in.
const REQUEST_PAUSE: Duration = Duration::from_secs(10);

/// How long delivery reports may wait for a new token while the old one is valid.
const RENEWAL_WAIT: Duration = Duration::from_secs(1);

pub(super) struct Tokens {
    source: Box<dyn TokenSource>,
    cached: Mutex<Option<Cached>>,
    /// Locked during a request that blocks because no token is valid. A background renewal does not lock it. Others that
    /// need a token wait for its answer.
    requesting: Mutex<()>,
    is_renewing: AtomicBool,
    /// Used with `cached`: notified when a renewal has ended.
    renewed: Condvar,
    has_failed: AtomicBool,
}

#[derive(Clone)]
struct Cached {
    token: Secret,
    requested: Instant,
    renew_from: Instant,
    ends: Instant,
}

impl Tokens {
    /// The tokens for this cluster; `None` if its clients log in without tokens.
    pub(super) fn of(kafka: &Kafka) -> Result<Option<Arc<Tokens>>, KafkaFailure> {
        let source: Box<dyn TokenSource> = match (&kafka.oauth, &kafka.aws) {
            (Some(oauth), _) => Box::new(Endpoint(oauth.clone())),
            (None, Some(aws)) => signer(aws)?,
            (None, None) => return Ok(None),
        };
        Ok(Some(Arc::new(Tokens::new(source))))
    }

    fn new(source: Box<dyn TokenSource>) -> Tokens {
        let (cached, requesting) = (Mutex::default(), Mutex::default());
        let (is_renewing, has_failed) = (AtomicBool::default(), AtomicBool::default());
        Tokens { source, cached, requesting, is_renewing, renewed: Condvar::new(), has_failed }
    }

    /// A valid token. If there is none, blocks for as long as the source takes.
    pub(super) fn get(self: &Arc<Self>) -> Result<OAuthToken, TokenError> {
        if let Some(cached) = self.valid() {
            let is_old = cached.renew_from <= Instant::now();
            let newest = if is_old { self.after_renewal() } else { None };
            return Ok(self.for_librdkafka(&newest.unwrap_or(cached)));
        }
        let _one_at_a_time = lock(&self.requesting);
        let cached = match self.valid() {
            Some(cached) => cached,
            None => self.request()?,
        };
        Ok(self.for_librdkafka(&cached))
    }

    /// The brokers have rejected the token: another one is requested before the next login, unless this one is new.
    pub(super) fn reject(&self) {
        let mut cached = lock(&self.cached);
        if cached.as_ref().is_some_and(|cached| cached.requested.elapsed() >= REQUEST_PAUSE) {
            *cached = None;
        }
    }

    /// Requests another token before the next login. The current one remains valid, in case that the source does not answer.
    pub(super) fn renew(&self) {
        if let Some(cached) = lock(&self.cached).as_mut() {
            cached.renew_from = Instant::now();
        }
    }

    fn valid(&self) -> Option<Cached> {
        lock(&self.cached).clone().filter(|cached| Instant::now() + LEAST_LEFT < cached.ends)
    }

    fn request(&self) -> Result<Cached, TokenError> {
        let requested = Instant::now();
        let issued = self.source.request()?;
        let cached = Cached {
            token: issued.token,
            requested,
            renew_from: requested + issued.lifetime.mul_f64(RENEWED_AT),
            ends: requested + issued.lifetime,
        };
        *lock(&self.cached) = Some(cached.clone());
        Ok(cached)
    }

    /// The token after a renewal has ended or has taken too long.
    fn after_renewal(self: &Arc<Self>) -> Option<Cached> {
        self.renew_in_background();
        let cached = lock(&self.cached);
        let waited = self
            .renewed
            .wait_timeout_while(cached, RENEWAL_WAIT, |_| self.is_renewing.load(Ordering::Acquire));
        drop(waited);
        self.valid()
    }

    /// The thread ends with the source's answer or timeout. The first failure and the next success are logged. Once no
    /// token is valid, the cluster counts as unavailable.
    fn renew_in_background(self: &Arc<Self>) {
        if self.is_renewing.swap(true, Ordering::AcqRel) {
            return;
        }
        let tokens = Arc::clone(self);
        let renew = move || {
            match tokens.request() {
                Ok(_) if tokens.has_failed.swap(false, Ordering::AcqRel) => {
                    tracing::info!(code = "token_not_renewed", "kafka token renewed");
                }
                Err(error) if !tokens.has_failed.swap(true, Ordering::AcqRel) => tracing::warn!(
                    code = "token_not_renewed",
                    "kafka token renewal failed, retrying while the current token is valid: {error}. Fix: {}",
                    tokens.source.remedy()
                ),
                _ => {}
            }
            let _cached = lock(&tokens.cached);
            tokens.is_renewing.store(false, Ordering::Release);
            tokens.renewed.notify_all();
        };
        if let Err(error) = thread::Builder::new().name("token renewal".to_owned()).spawn(renew) {
            tracing::error!("cannot start the thread that renews the kafka token: {error}");
            self.is_renewing.store(false, Ordering::Release);
        }
    }

    fn for_librdkafka(&self, cached: &Cached) -> OAuthToken {
        let ends = SystemTime::now() + cached.ends.saturating_duration_since(Instant::now());
        let ends = ends.duration_since(UNIX_EPOCH).unwrap_or_default();
        OAuthToken {
            token: cached.token.expose().to_owned(),
            principal_name: self.source.principal().to_owned(),
            lifetime_ms: i64::try_from(ends.as_millis()).unwrap_or(i64::MAX),
        }
    }
}

#[cfg(feature = "aws")]
fn signer(aws: &Aws) -> Result<Box<dyn TokenSource>, KafkaFailure> {
    Ok(Box::new(crate::msk::Signer(aws.clone())))
}

/// The configuration has reported this before.
#[cfg(not(feature = "aws"))]
fn signer(_: &Aws) -> Result<Box<dyn TokenSource>, KafkaFailure> {
    Err(CONFIGURATION.failure("[kafka.aws]: this program was built without the aws feature"))
}

/// A token of these, for a callback of librdkafka.
pub(crate) fn issued(tokens: Option<&Arc<Tokens>>) -> Result<OAuthToken, Box<dyn std::error::Error>> {
    Ok(tokens.ok_or("neither [kafka.oauth] nor [kafka.aws] is set")?.get()?)
}

/// The limit for one request.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Issues tokens. Reads secrets again for each one.
pub(super) trait TokenSource: Send + Sync {
    /// A new token. Blocks the thread for at most [`TIMEOUT`].
    fn request(&self) -> Result<Issued, TokenError>;

    /// The user's name in librdkafka. Brokers read the name from the token.
    fn principal(&self) -> &str;

    /// What to check if there is no token.
    fn remedy(&self) -> &'static str;
}

pub(super) struct Issued {
    pub(super) token: Secret,
    /// Counts from the time of the request.
    pub(super) lifetime: Duration,
}

/// Why there is no token. It contains no token and no secret.
#[derive(Clone, Debug, thiserror::Error)]
#[error("no token from {origin}: {problem}")]
pub(crate) struct TokenError {
    origin: String,
    problem: Problem,
}

/// What is wrong, as the end of a sentence, with a remedy.
pub(super) type Problem = String;

/// Runs a request on this thread, for at most [`TIMEOUT`].
pub(super) fn run(
    origin: &dyn fmt::Display,
    request: impl Future<Output = Result<Issued, Problem>>,
) -> Result<Issued, TokenError> {
    let issued = match runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => {
            let answer = runtime.block_on(async { tokio::time::timeout(TIMEOUT, request).await });
            runtime.shutdown_background(); // a name may still be resolving
            answer.unwrap_or_else(|_| Err(format!("no response within {TIMEOUT:?}")))
        }
        Err(error) => Err(error.to_string()),
    };
    issued.map_err(|problem| TokenError { origin: origin.to_string(), problem })
}
