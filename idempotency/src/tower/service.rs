use std::error::Error as StdError;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body::Body;
use http_body_util::{BodyExt, Either, Full, LengthLimitError, Limited};
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::time::timeout;
use tower_service::Service;

use super::{BoxError, Connections, DoNotStore, Held, IdempotencyLayer, Outcome};
use crate::idempotency::{self, BODY_BYTES_MAX, Begun, Error, Fingerprint, Guard, Key, is_transient};

const HEADER: &str = "idempotency-key";
const PROBLEM: &str = "application/problem+json";

/// How long a response waits until its key is released.
const RELEASE_WITHIN: Duration = Duration::from_secs(2);

/// The layer's response. Its body is the handler's, or a complete one.
///
/// ```
/// use http_body_util::{Either, Full};
/// use pg_idempotency::tower::Answer;
///
/// fn is_of_the_handler<R>(answer: &Answer<R>) -> bool {
///     matches!(answer.body(), Either::Left(_))
/// }
/// ```
pub type Answer<R> = Response<Either<R, Full<Bytes>>>;

/// An answer without the handler.
type Refusal = Response<Full<Bytes>>;

/// The service of [`IdempotencyLayer`].
///
/// ```no_run
/// use pg_idempotency::tower::{Connections, IdempotencyLayer, IdempotencyService};
/// use tower_layer::Layer;
///
/// fn with_keys<C: Connections, S>(layer: &IdempotencyLayer<C>, service: S) -> IdempotencyService<C, S> {
///     layer.layer(service) // axum and tower call this for you
/// }
/// ```
#[derive(Clone)]
pub struct IdempotencyService<C, S> {
    pub(super) layer: Arc<IdempotencyLayer<C>>,
    pub(super) inner: S,
}

/// The body of a request is created again from its bytes. Convert `hyper::body::Incoming`, for example to axum's `Body`, before
/// this layer.
impl<C, S, B, R> Service<Request<B>> for IdempotencyService<C, S>
where
    C: Connections,
    S: Service<Request<B>, Response = Response<R>, Error: Send, Future: Send> + Clone + Send + 'static,
    B: Body<Data: Send, Error: Into<BoxError>> + From<Bytes> + Send + 'static,
    R: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    type Response = Answer<R>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Answer<R>, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let not_ready = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, not_ready);
        let layer = Arc::clone(&self.layer);
        Box::pin(async move {
            if request.method().is_safe() || !layer.is_required && !request.headers().contains_key(HEADER) {
                return Ok(inner.call(request).await?.map(Either::Left));
            }
            let (parts, body) = request.into_parts();
            let (asked, body) = match layer.read(&parts, body).await {
                Ok(read) => read,
                Err(refusal) => return Ok(refusal.map(Either::Right)),
            };
            // Before the task, because a client that disconnects during this wait has locked no key.
            let connection = match layer.connections.get().await {
                Ok(connection) => connection,
                Err(error) => return Ok(layer.unavailable(&asked, &*error).map(Either::Right)),
            };
            let mut request = Request::from_parts(parts, B::from(body));
            let own = Arc::clone(&layer);
            let work = async move {
                let held: Held = match own.start(connection, &asked).await {
                    Ok(guard) => Arc::new(Mutex::new(guard)),
                    Err(refusal) => return Ok(refusal.map(Either::Right)),
                };
                request.extensions_mut().insert(Arc::clone(&held));
                let result = inner.call(request).await;
                own.settle(held, result).await
            };
            #[cfg(feature = "opentelemetry")]
            let work = in_current(work);
            // In its own task, so that a client that disconnects does not stop the work halfway.
            tokio::spawn(work).await.unwrap_or_else(|_| {
                let detail = "The handler failed, and its outcome is unknown. Repeat the request later.";
                Ok(layer.refuse(StatusCode::INTERNAL_SERVER_ERROR, detail).map(Either::Right))
            })
        })
    }
}

#[allow(clippy::result_large_err)] // an error is a response too
impl<C: Connections> IdempotencyLayer<C> {
    /// The request for the database, and its body.
    async fn read(
        &self,
        parts: &Parts,
        body: impl Body<Error: Into<BoxError>>,
    ) -> Result<(idempotency::Request, Bytes), Refusal> {
        let bad = |detail: &str| self.refuse(StatusCode::BAD_REQUEST, detail);
        let too_large = |detail: &str| self.refuse(StatusCode::PAYLOAD_TOO_LARGE, detail);
        let over = |bytes_max| too_large(&format!("The maximum size of a body is {bytes_max} bytes."));
        let scope = (self.scope)(parts)
            .ok_or_else(|| {
                let mut refusal = self.refuse(StatusCode::UNAUTHORIZED, "The request is not authenticated.");
                refusal.headers_mut().insert(WWW_AUTHENTICATE, self.challenge.clone());
                refusal
            })?
            .map_err(|error| bad(&format!("The Idempotency-Key has no valid scope: {error}.")))?;
        let mut keys = parts.headers.get_all(HEADER).iter();
        let (Some(key), None) = (keys.next(), keys.next()) else {
            return Err(bad(
                "Send the header Idempotency-Key once, with a string that is unique for this request.",
            ));
        };
        let key = Key::from_header(key.as_bytes())
            .map_err(|error| bad(&format!("The Idempotency-Key is malformed: {error}.")))?;
        let body = Limited::new(body, self.body_bytes_max).collect().await;
        let body = body.map_err(|error| {
            if error.is::<LengthLimitError>() {
                over(self.body_bytes_max)
            } else if is_over_a_limit(&*error) {
                too_large("The body is larger than this server accepts.")
            } else {
                bad("The body is incomplete.")
            }
        })?;
        let body = body.to_bytes();
        let fingerprint = match boundary(&parts.headers) {
            Some(boundary) => Fingerprint::multipart(&body, boundary),
            None => Fingerprint::json(&body).unwrap_or_else(|_| Fingerprint::bytes(&body)),
        };
        let fingerprint = fingerprint.with(parts.method.as_str().as_bytes());
        let fingerprint = fingerprint.with(parts.uri.path().as_bytes());
        let fingerprint = parts.uri.query().map_or(fingerprint, |query| fingerprint.with(query.as_bytes()));
        let mut asked = idempotency::Request::new(scope, key, fingerprint);
        if self.keeps_body {
            let kept = asked.keep_body(body.clone());
            asked = kept.map_err(|_| over(idempotency::REQUEST_BYTES_MAX))?;
        }
        Ok((asked, body))
    }

    /// Locks the key, or returns the answer without the handler.
    async fn start(
        &self,
        mut connection: C::Connection,
        asked: &idempotency::Request,
    ) -> Result<Guard, Refusal> {
        let observe = |outcome: Outcome<'_>| (self.observer)(asked.scope(), outcome);
        match self.idempotency.begin(C::client(&mut connection), asked).await {
            Ok(Begun::Started(guard)) => {
                let attempts = guard.attempts();
                observe(if attempts > 1 { Outcome::TakenOver(attempts) } else { Outcome::Started });
                Ok(guard)
            }
            Ok(Begun::Replay(stored)) => {
                observe(Outcome::Replayed);
                let mut response = Response::from(stored);
                response.headers_mut().insert(self.replay_header.clone(), HeaderValue::from_static("true"));
                Err(response)
            }
            Ok(Begun::InProgress { since, retry_after }) => {
                observe(Outcome::InProgress(since));
                let detail = "Another attempt of this request is in progress. Repeat it later.";
                let mut refusal = self.refuse(StatusCode::CONFLICT, detail);
                // As long as it has taken so far, so that retries of a slow request become rarer.
                let seconds = since.min(retry_after).as_secs_f64().ceil().max(1.0) as u64;
                refusal.headers_mut().insert(RETRY_AFTER, seconds.into());
                Err(refusal)
            }
            Ok(Begun::Mismatch) => {
                observe(Outcome::Mismatched);
                let detail = "The Idempotency-Key was used for another request. Use a new key.";
                Err(self.refuse(StatusCode::UNPROCESSABLE_ENTITY, detail))
            }
            Err(error @ Error::TooManyKeys) => {
                observe(Outcome::Unavailable(&error));
                let detail = "Too many requests with an Idempotency-Key were sent. Repeat it later.";
                let mut refusal = self.refuse(StatusCode::TOO_MANY_REQUESTS, detail);
                refusal.headers_mut().insert(RETRY_AFTER, 60.into());
                Err(refusal)
            }
            Err(error) => Err(self.unavailable(asked, &error)),
        }
    }

    fn unavailable(&self, asked: &idempotency::Request, error: &(dyn StdError + 'static)) -> Refusal {
        (self.observer)(asked.scope(), Outcome::Unavailable(error));
        self.refuse(StatusCode::SERVICE_UNAVAILABLE, "The request was not started. Repeat it later.")
    }

    /// Stores the handler's response or releases the key, unless the handler has stored its response itself.
    async fn settle<R: Body<Data = Bytes, Error: Into<BoxError>>, E>(
        &self,
        held: Held,
        result: Result<Response<R>, E>,
    ) -> Result<Answer<R>, E> {
        let Ok(guard) = held.try_lock_owned() else { return Ok(result?.map(Either::Left)) };
        let status = result.as_ref().map_or(0, |response| response.status().as_u16());
        match result {
            // If the handler stored a response with another status, that was rolled back, or storing this one fails.
            Ok(response) if guard.is_finished_with(status) => Ok(response.map(Either::Left)),
            Ok(response) if !is_transient(status) && self.is_stored(&response) => {
                Ok(self.store_response(&guard, response).await)
            }
            result => {
                // A completer must not execute a request that the handler refused.
                let is_refused = result.is_ok() && !is_transient(status);
                self.release(guard, is_refused).await;
                Ok(result?.map(Either::Left))
            }
        }
    }

    /// If this fails, the lock expires. If the handler has committed its response, this has no effect.
    ///
    /// It waits for the handler's transaction if it is still open. It then continues in its own task, because a connection
    /// whose statement was cancelled must not return to the pool.
    async fn release(&self, guard: OwnedMutexGuard<Guard>, is_refused: bool) {
        let connections = self.connections.clone();
        let release = async move {
            if let Ok(mut connection) = connections.get().await {
                let _ = guard.unlock(C::client(&mut connection), is_refused).await;
            }
        };
        let _ = timeout(RELEASE_WITHIN, tokio::spawn(release)).await;
    }

    fn is_stored<R>(&self, response: &Response<R>) -> bool {
        response.extensions().get::<DoNotStore>().is_none()
            && (self.stores)(response.status(), response.headers())
    }

    /// If the response cannot be stored, a problem is stored in its place, so that a retry does not run the handler again.
    async fn store_response<R: Body<Data = Bytes, Error: Into<BoxError>>>(
        &self,
        guard: &Guard,
        response: Response<R>,
    ) -> Answer<R> {
        let not_stored = |error: &BoxError| (self.observer)(guard.scope(), Outcome::NotStored(&**error));
        let (parts, body) = response.into_parts();
        let executed = self.executed(parts.status);
        let (storable, answer) = if body.size_hint().upper().is_none_or(|bytes| bytes > BODY_BYTES_MAX as u64)
        {
            let error = "the size of the response is unknown or too large".into();
            (Err(error), Response::from_parts(parts, Either::Left(body)))
        } else {
            match body.collect().await.map_err(Into::into) {
                Ok(body) => {
                    let body = body.to_bytes();
                    let response = idempotency::Response::of_http(&parts, &body);
                    let storable = response.check().map(|()| response).map_err(Into::into);
                    (storable, Response::from_parts(parts, Either::Right(Full::new(body))))
                }
                Err(error) => (Err(error), Response::from(executed.clone()).map(Either::Right)),
            }
        };
        let stored = storable.unwrap_or_else(|error| {
            not_stored(&error);
            executed
        });
        if let Err(error) = self.finish(guard, &stored).await {
            not_stored(&error);
            if let Some(Error::LockLost) = error.downcast_ref() {
                // Each client must receive the same response: the one that is stored.
                let detail =
                    "This request has a different response, or another attempt is in progress. Repeat it.";
                return self.refuse(StatusCode::SERVICE_UNAVAILABLE, detail).map(Either::Right);
            }
        }
        answer
    }

    /// The answer to a repeated request whose response could not be stored.
    fn executed(&self, status: StatusCode) -> idempotency::Response {
        let status = status.as_u16();
        let detail =
            format!("The request was executed, but its response with the status {status} was not stored.");
        let problem = self.problem(StatusCode::GONE, &detail);
        let response = idempotency::Response::new(StatusCode::GONE.as_u16()).body(problem);
        response.header(CONTENT_TYPE.as_str(), PROBLEM)
    }

    async fn finish(&self, guard: &Guard, response: &idempotency::Response) -> Result<(), BoxError> {
        let mut connection = self.connections.get().await?;
        Ok(guard.finish_alone(C::client(&mut connection), response).await?)
    }

    fn refuse(&self, status: StatusCode, detail: &str) -> Refusal {
        let mut refusal = Response::new(Full::from(self.problem(status, detail)));
        *refusal.status_mut() = status;
        let headers = refusal.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(PROBLEM));
        if status == StatusCode::SERVICE_UNAVAILABLE {
            headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        refusal
    }

    /// Problem details in JSON (RFC 9457).
    fn problem(&self, status: StatusCode, detail: &str) -> String {
        let problem = serde_json::json!({
            "type": self.documentation,
            "title": status.canonical_reason(),
            "status": status.as_u16(),
            "detail": detail,
        });
        problem.to_string()
    }
}

/// Keeps the current trace for work in another task.
#[cfg(feature = "opentelemetry")]
fn in_current<F: Future>(work: F) -> impl Future<Output = F::Output> {
    let work = opentelemetry::context::FutureExt::with_current_context(work);
    #[cfg(feature = "tracing")]
    let work = tracing::Instrument::in_current_span(work);
    work
}

/// The boundary of a multipart body.
fn boundary(headers: &HeaderMap) -> Option<&str> {
    let (kind, parameters) = headers.get(CONTENT_TYPE)?.to_str().ok()?.split_once(';')?;
    if !kind.trim().to_ascii_lowercase().starts_with("multipart/") {
        return None;
    }
    parameters.split(';').find_map(|parameter| {
        let (name, value) = parameter.split_once('=')?;
        let value = value.trim().trim_matches('"');
        (name.trim().eq_ignore_ascii_case("boundary") && !value.is_empty()).then_some(value)
    })
}

/// Whether a body was rejected because of its size, by the limit of an outer layer.
fn is_over_a_limit(error: &(dyn StdError + 'static)) -> bool {
    std::iter::successors(Some(error), |&error| error.source())
        .any(<dyn std::error::Error>::is::<LengthLimitError>)
}
