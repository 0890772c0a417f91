//! The token with which the clients of a cluster authenticate (SASL OAUTHBEARER).
//!
//! librdkafka requests a token when a producer is created, and again after four fifths of the token's lifetime. It does so on
//! the thread that delivers reports, which must not wait long. So a token that is still valid is renewed on another thread,
//! and returned if the new one does not arrive soon. librdkafka then asks again before it expires.
//!
//! There is one [`TokenSource`] for each way to get a token. The one here is the token endpoint of `[kafka.oauth]`: the client
//! credentials grant of OAuth 2.0. No error contains a token or a secret.

use crate::options::{ClientAuthentication, Kafka, OAuth};
use crate::tls::Https;
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE};
use hyper::{Request, StatusCode};
use rdkafka::client::OAuthToken;
use relay::health::stats::lock;
use settings::secret::Secret;
use settings::text::percent_encode;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use std::{mem, thread};
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
    source: TokenSource,
    state: Mutex<State>,
    /// Locked during a request that blocks because no token is valid. A background renewal does not lock it. Others that
    /// need a token wait for its answer.
    requesting: Mutex<()>,
    /// Used with `state`: notified when a renewal has ended.
    renewed: Condvar,
}

#[derive(Default)]
struct State {
    cached: Option<Cached>,
    is_renewing: bool,
    /// The last renewal has failed.
    has_failed: bool,
    /// The end of the last failed request, and why it failed.
    failed: Option<(Instant, Problem)>,
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
    pub(super) fn of(kafka: &Kafka) -> Option<Arc<Tokens>> {
        let source = match (&kafka.oauth, &kafka.aws) {
            (Some(oauth), _) => endpoint(oauth.clone()),
            #[cfg(feature = "aws")]
            (None, Some(aws)) => crate::msk::signer(aws.clone()),
            // Without the feature, the configuration cannot have [kafka.aws].
            (None, _) => return None,
        };
        let (state, requesting, renewed) = (Mutex::default(), Mutex::default(), Condvar::new());
        Some(Arc::new(Tokens { source, state, requesting, renewed }))
    }

    /// A valid token. If there is none, blocks for as long as the source takes.
    pub(super) fn get(self: &Arc<Self>) -> Result<OAuthToken, Problem> {
        if let Some(cached) = self.valid() {
            let is_old = cached.renew_from <= Instant::now();
            let newest = if is_old { self.after_renewal() } else { None };
            return Ok(self.for_librdkafka(&newest.unwrap_or(cached)));
        }
        let asked = Instant::now();
        let _one_at_a_time = lock(&self.requesting);
        if let Some(cached) = self.valid() {
            return Ok(self.for_librdkafka(&cached));
        }
        // The request that this one waited for, which may have taken long, has failed.
        if let Some((_, problem)) = lock(&self.state).failed.clone().filter(|(failed, _)| *failed > asked) {
            return Err(problem);
        }
        Ok(self.for_librdkafka(&self.request()?))
    }

    /// The brokers have rejected the token: another one is requested before the next login, unless this one is new.
    pub(super) fn reject(&self) {
        lock(&self.state).cached.take_if(|cached| cached.requested.elapsed() >= REQUEST_PAUSE);
    }

    /// Requests another token before the next login. The current one remains valid, in case that the source does not answer.
    pub(super) fn renew(&self) {
        if let Some(cached) = lock(&self.state).cached.as_mut() {
            cached.renew_from = Instant::now();
        }
    }

    fn valid(&self) -> Option<Cached> {
        lock(&self.state).cached.clone().filter(|cached| Instant::now() + LEAST_LEFT < cached.ends)
    }

    /// On another thread: the caller's thread may run a runtime, and a request starts one, which cannot be nested.
    fn request(&self) -> Result<Cached, Problem> {
        let requested = Instant::now();
        let issued = thread::scope(|scope| {
            let thread = thread::Builder::new().name("token request".to_owned());
            match thread.spawn_scoped(scope, || (self.source.request)()) {
                Ok(request) => {
                    request.join().unwrap_or_else(|_| Err("the request for a token panicked".to_owned()))
                }
                Err(error) => Err(format!("no thread could be started to request a token: {error}")),
            }
        });
        let issued = issued.inspect_err(|problem| {
            lock(&self.state).failed = Some((Instant::now(), problem.clone()));
        })?;
        let cached = Cached {
            token: issued.token,
            requested,
            renew_from: requested + issued.lifetime.mul_f64(RENEWED_AT),
            ends: requested + issued.lifetime,
        };
        lock(&self.state).cached = Some(cached.clone());
        Ok(cached)
    }

    /// The token after a renewal has ended or has taken too long.
    fn after_renewal(self: &Arc<Self>) -> Option<Cached> {
        self.renew_in_background();
        let state = lock(&self.state);
        drop(self.renewed.wait_timeout_while(state, RENEWAL_WAIT, |state| state.is_renewing));
        self.valid()
    }

    /// The thread ends with the source's answer or timeout. The first failure and the next success are logged. Once no
    /// token is valid, the cluster counts as unavailable.
    fn renew_in_background(self: &Arc<Self>) {
        if mem::replace(&mut lock(&self.state).is_renewing, true) {
            return;
        }
        let tokens = Arc::clone(self);
        let renew = move || {
            let renewed = tokens.request();
            let had_failed = mem::replace(&mut lock(&tokens.state).has_failed, renewed.is_err());
            match renewed {
                Ok(_) if had_failed => tracing::info!(code = "token_not_renewed", "kafka token renewed"),
                Err(error) if !had_failed => tracing::warn!(
                    code = "token_not_renewed",
                    "kafka token renewal failed, retrying while the current token is valid: {error}. Fix: {}",
                    tokens.source.remedy
                ),
                _ => {}
            }
            lock(&tokens.state).is_renewing = false;
            tokens.renewed.notify_all();
        };
        if let Err(error) = thread::Builder::new().name("token renewal".to_owned()).spawn(renew) {
            tracing::error!("cannot start the thread that renews the kafka token: {error}");
            lock(&self.state).is_renewing = false;
        }
    }

    fn for_librdkafka(&self, cached: &Cached) -> OAuthToken {
        let ends = SystemTime::now() + cached.ends.saturating_duration_since(Instant::now());
        let ends = ends.duration_since(UNIX_EPOCH).unwrap_or_default();
        OAuthToken {
            token: cached.token.expose().to_owned(),
            principal_name: self.source.principal.clone(),
            lifetime_ms: i64::try_from(ends.as_millis()).unwrap_or(i64::MAX),
        }
    }
}

/// A token of these, for a callback of librdkafka.
pub(crate) fn issued(tokens: Option<&Arc<Tokens>>) -> Result<OAuthToken, Box<dyn std::error::Error>> {
    Ok(tokens.ok_or("neither [kafka.oauth] nor [kafka.aws] is set")?.get()?)
}

/// The limit for one request.
const TIMEOUT: Duration = Duration::from_secs(10);

pub(super) struct TokenSource {
    /// Requests a new token, for which it reads secrets again. Blocks the thread for at most [`TIMEOUT`].
    pub(super) request: Box<dyn Fn() -> Result<Issued, Problem> + Send + Sync>,
    /// The user's name in librdkafka. Brokers read the name from the token.
    pub(super) principal: String,
    /// What to check if there is no token.
    pub(super) remedy: &'static str,
}

pub(super) struct Issued {
    pub(super) token: Secret,
    /// Counts from the time of the request.
    pub(super) lifetime: Duration,
}

/// Why there is no token, with a remedy. It contains no token and no secret.
pub(super) type Problem = String;

/// Runs a request on this thread, for at most [`TIMEOUT`].
pub(super) fn run(
    origin: &str,
    request: impl Future<Output = Result<Issued, Problem>>,
) -> Result<Issued, Problem> {
    let issued = match runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => {
            let answer = runtime.block_on(async { tokio::time::timeout(TIMEOUT, request).await });
            runtime.shutdown_background(); // a name may still be resolving
            answer.unwrap_or_else(|_| Err(format!("no response within {TIMEOUT:?}")))
        }
        Err(error) => Err(error.to_string()),
    };
    issued.map_err(|problem| format!("no token from {origin}: {problem}"))
}

const ANSWER_BYTES_MAX: usize = 64 * 1_024;
const LIFETIME_DEFAULT: Duration = Duration::from_secs(300);
/// The longest accepted lifetime, in case the endpoint returns a nonsensical number.
const LIFETIME_MOST: Duration = Duration::from_secs(24 * 3_600);

fn endpoint(settings: OAuth) -> TokenSource {
    TokenSource {
        principal: settings.client_id.clone(),
        remedy: "check [kafka.oauth] and the identity provider",
        request: Box::new(move || run(&settings.token_url, exchange(&settings))),
    }
}

async fn exchange(settings: &OAuth) -> Result<Issued, Problem> {
    let secret = settings
        .client_secret
        .read()
        .map_err(|error| format!("the client secret cannot be read: {error}"))?;
    let https = Https {
        ca_location: settings.ca_location.as_deref(),
        authorities: "[kafka.oauth] ca_location",
        connect_timeout: None,
        bytes_max: ANSWER_BYTES_MAX,
    };
    let response = https.send(grant(settings, &secret)?).await?;
    read(response.status(), response.body())
}

/// The request of RFC 6749, 4.4.2.
fn grant(settings: &OAuth, secret: &Secret) -> Result<Request<Full<Bytes>>, Problem> {
    let mut form = vec![("grant_type", "client_credentials")];
    form.extend(settings.scope.as_deref().map(|scope| ("scope", scope)));
    form.extend(settings.audience.as_deref().map(|audience| ("audience", audience)));
    let mut request = Request::post(&settings.token_url)
        .header(ACCEPT, "application/json")
        .header(CONTENT_TYPE, "application/x-www-form-urlencoded");
    let id = settings.client_id.as_str();
    match settings.client_authentication {
        ClientAuthentication::Basic => {
            let pair = format!("{}:{}", form_encode(id), form_encode(secret.expose()));
            let encoded = openssl::base64::encode_block(pair.as_bytes());
            request = request.header(AUTHORIZATION, format!("Basic {encoded}"));
        }
        ClientAuthentication::Post => form.extend([("client_id", id), ("client_secret", secret.expose())]),
    }
    let body: Vec<String> = form.iter().map(|(key, value)| format!("{key}={}", form_encode(value))).collect();
    request
        .body(Full::from(body.join("&")))
        .map_err(|_| "client_id or client_secret cannot be sent".to_owned())
}

fn read(status: StatusCode, body: &[u8]) -> Result<Issued, Problem> {
    let json: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
    if status.is_redirection() {
        return Err(format!(
            "it responded with {status}. Redirects are not followed: set token_url to the endpoint itself"
        ));
    }
    if status != StatusCode::OK {
        let code = json["error"].as_str().filter(|code| is_error_code(code));
        return Err(match code {
            Some("invalid_client" | "unauthorized_client") => {
                format!("it responded with {status}, invalid_client. Check client_id and the client secret")
            }
            Some("invalid_scope") => format!("it responded with {status}, invalid_scope. Check scope"),
            Some(code) => format!("it responded with {status}, {code}"),
            None => format!("it responded with {status}"),
        });
    }
    let token = json["access_token"].as_str().unwrap_or_default();
    if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("it responded with 200 OK, but without a valid access_token. Check whether it is a token endpoint"
            .to_owned());
    }
    // Some providers write the number as a string.
    let seconds = json["expires_in"].as_u64().or_else(|| json["expires_in"].as_str()?.parse().ok());
    let lifetime = seconds.map_or(LIFETIME_DEFAULT, Duration::from_secs).min(LIFETIME_MOST);
    if lifetime.is_zero() {
        return Err("its token expires immediately (expires_in is 0)".to_owned());
    }
    Ok(Issued { token: Secret::new(token), lifetime })
}

/// Whether this looks like a code of RFC 6749. Anything else could contain a secret.
fn is_error_code(text: &str) -> bool {
    text.len() <= 40 && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
}

/// `application/x-www-form-urlencoded`.
fn form_encode(text: &str) -> String {
    percent_encode(text, "-._*")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn problem(status: u16, body: &str) -> String {
        read(StatusCode::from_u16(status).unwrap(), body.as_bytes()).err().unwrap()
    }

    #[test]
    fn a_token_has_the_lifetime_that_the_endpoint_returns() {
        for (body, seconds) in [
            (r#"{"access_token": "a.b-c", "expires_in": 60}"#, 60),
            (r#"{"access_token": "a.b-c", "expires_in": "60"}"#, 60),
            (r#"{"access_token": "a.b-c"}"#, 300),
            (r#"{"access_token": "a.b-c", "expires_in": 99999999999}"#, 24 * 3_600),
        ] {
            let issued = read(StatusCode::OK, body.as_bytes()).ok().unwrap();
            assert_eq!(issued.token.expose(), "a.b-c");
            assert_eq!(issued.lifetime.as_secs(), seconds, "{body}");
        }
    }

    #[test]
    fn an_answer_without_a_token_fails_with_a_remedy_and_without_its_content() {
        assert!(
            problem(401, r#"{"error": "invalid_client"}"#).ends_with("Check client_id and the client secret")
        );
        assert!(problem(400, r#"{"error": "invalid_scope"}"#).ends_with("Check scope"));
        assert!(problem(302, "").contains("token_url"));
        for (status, body) in [
            (401, r#"{"error": "HUNTER2"}"#),
            (500, "HUNTER2"),
            (200, "HUNTER2"),
            (200, r#"{"access_token": "HUNTER2\u0000"}"#),
            (200, r#"{"access_token": "HUNTER2", "expires_in": 0}"#),
        ] {
            let problem = problem(status, body);
            assert!(!problem.contains("HUNTER2") && problem.starts_with("it"), "{problem}");
        }
    }

    #[test]
    fn clients_that_wait_for_the_same_request_share_its_failure() {
        let requests = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&requests);
        let request = move || {
            counted.fetch_add(1, Ordering::Relaxed);
            Err("no response".to_owned())
        };
        let source = TokenSource { request: Box::new(request), principal: String::new(), remedy: "" };
        let (state, requesting, renewed) = (Mutex::default(), Mutex::default(), Condvar::new());
        let tokens = Arc::new(Tokens { source, state, requesting, renewed });
        for requested in [1, 2] {
            assert!(tokens.get().is_err());
            assert_eq!(requests.load(Ordering::Relaxed), requested, "no client waited for the last request");
        }
        // The request of another client fails while this one waits.
        let later = Instant::now() + Duration::from_secs(3_600);
        lock(&tokens.state).failed = Some((later, "no response".to_owned()));
        assert_eq!(tokens.get().err().unwrap(), "no response");
        assert_eq!(requests.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn special_characters_in_a_form_are_encoded() {
        assert_eq!(form_encode("a b&c=d/é*"), "a%20b%26c%3Dd%2F%C3%A9*");
    }
}
