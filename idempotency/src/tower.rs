//! A [tower layer](IdempotencyLayer) for requests with the header `Idempotency-Key`, for axum and every other tower server.
//!
//! It follows the IETF draft [draft-ietf-httpapi-idempotency-key-header]. A repeated request gets the stored response to the
//! first one, and its handler does not run. All other responses of the layer are problem details in JSON (RFC 9457).
//!
//! [draft-ietf-httpapi-idempotency-key-header]: https://datatracker.ietf.org/doc/draft-ietf-httpapi-idempotency-key-header/
//!
//! | Request | Response |
//! |---|---|
//! | without a key | 400; with [`IdempotencyLayer::optional`], the handler's response |
//! | with a malformed key, with two of them, or with an invalid scope, for example because the path is too long | 400 |
//! | without a scope, because the user is not authenticated | 401 |
//! | with a body over [`IdempotencyLayer::body_limit`], or over the limit of an outer layer | 413 |
//! | repeated while the first attempt is in progress | 409 with `Retry-After` |
//! | with the key of a request with another method, path, query or body | 422 |
//! | with a new key, if the scope has its maximum number of keys | 429 with `Retry-After` |
//! | repeated after the first attempt is finished | the stored response, with the header `idempotent-replayed: true` |
//! | repeated after a response that cannot be stored | 410; the handler does not run again |
//! | while PostgreSQL is unavailable | 503 with `Retry-After`; the handler does not run |
//!
//! ```no_run
//! # #[cfg(feature = "deadpool-postgres")] mod example {
//! use deadpool_postgres::Pool;
//! use http::request::Parts;
//! use pg_idempotency::idempotency::Scope;
//! use pg_idempotency::tower::IdempotencyLayer;
//!
//! /// Set by the authentication, which runs before the layer.
//! #[derive(Clone)]
//! struct User(String);
//!
//! fn idempotency(pool: Pool) -> IdempotencyLayer<Pool> {
//!     IdempotencyLayer::new(pool, |request: &Parts| {
//!         let user = request.extensions.get::<User>()?;
//!         Some(Scope::new(request.method.as_str(), request.uri.path(), &user.0))
//!     })
//! }
//! # }
//! ```
//!
//! `idempotency/examples/orders_api.rs` is a complete program with axum.
//!
//! # Who opens the transaction, and when the response is stored
//!
//! The **handler** opens and commits the transaction of its change. The layer runs only statements that commit by themselves:
//! one before the handler, which locks the key, and at most one after it. So the handler chooses between two guarantees:
//!
//! - **The effect happens once** if the handler takes the [`Held`] guard from the request's extensions and calls
//!   [`Guard::finish`] in its transaction. The change and the response are committed together or not at all. The layer passes
//!   the handler's response to the client, and stores nothing. The handler must return the same response that it stored:
//!   [`Response`] converts to [`http::Response`].
//! - **The effect usually happens once** if the handler does not finish the guard. Then the layer stores the handler's response
//!   after the handler has returned. If the process dies between the handler's COMMIT and the end of the layer's statement, or
//!   if the handler does not learn that its COMMIT succeeded and returns 5xx, a retry repeats the effect. Use it for handlers
//!   without an effect, for rejected requests, and for effects that are safe to repeat.
//!
//! The layer stores each response except transient ones (408, 425, 429, 5xx), those that are marked with [`DoNotStore`], and
//! those that say that the request was not executed and can succeed later: 401, 403, 404, 407 and 409. Set
//! [`IdempotencyLayer::store_if`] to decide otherwise. If it stores nothing, it releases the key, so that a retry runs the handler
//! again. A stored response is replayed without running the handler: authenticate *and authorize* outside of the layer.
//! A handler that returns a response that is not stored must not have committed a change or called an external system, except in
//! [phases](Guard::phase): without a committed phase, the released key counts as unused.
//!
//! The layer stores the status, the body, and all headers except `Set-Cookie`, `Date`, `Age`, `WWW-Authenticate`,
//! `Authentication-Info` and those of the connection. Add headers that depend on the single request, such as those of CORS or a
//! request ID, outside of the layer. Trailers are
//! dropped, from requests and from responses that the layer stores.
//!
//! A response cannot be stored if the size of its body is unknown, as that of a stream, or over 1 MiB, if its body fails, or if
//! its headers exceed 16 KiB. The client receives it, or 410 if the body fails. The observer gets [`Outcome::NotStored`]. The layer
//! then stores a 410 for repeated requests, because the handler may have had an effect. If it had none, mark the response with
//! [`DoNotStore`]. To replay the response, give its body a size.
//!
//! # Order of layers
//!
//! Authentication and compression belong outside of this layer: the scope needs the user, and compression usually hides the
//! size of the body. A concurrency limit belongs inside, next to the handler. A limit outside would not count a handler whose
//! client has disconnected.
//!
//! # Failures
//!
//! - **If the client disconnects** after its request has arrived, the handler continues, because it runs in its own tokio
//!   task. A retry gets the stored response. This needs a tokio runtime with time enabled. If the client disconnects while its
//!   request waits for a connection from the pool, nothing happens.
//! - **If the handler panics**, the client receives 500. The key stays locked until the lock expires, because the layer does not
//!   know what the handler has done. Then a retry takes over the request.
//! - **If the handler returns a transient response while its transaction is still open**, for example after a timeout, the client
//!   receives the response after at most 2 s. The key is released when the transaction ends.
//! - **If the process dies**, the lock expires too, after [`Idempotency::lock_for`]. Until then, a retry gets 409.
//! - **If the handler is slower than the lock**, another attempt can take over. Then [`Guard::finish`] fails with
//!   [`Error::LockLost`], and the handler's transaction rolls back: return 503. If the handler does not finish the guard, its
//!   effect can happen twice. Set the lock time to more than a handler ever takes.
//!
//! # Keys
//!
//! A key is a string of a structured header (RFC 9651), in quotes. The same key without quotes is accepted too, because many
//! clients send it like this. Requests with the methods GET, HEAD, OPTIONS and TRACE skip the layer.
//!
//! A repeated request must have the same path and the same query. Bodies are compared as in [`Fingerprint::json`] if they are
//! JSON, and otherwise byte by byte. The boundaries of a multipart body do not matter, because clients choose new ones for each
//! attempt. The layer reads the whole body before the handler runs.

mod connections;
mod service;

use std::error::Error as StdError;
use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use tokio::sync::Mutex;
use tower_layer::Layer;

use crate::idempotency::{Guard, Idempotency, REQUEST_BYTES_MAX, Scope};
use crate::invalid_text::InvalidText;

pub use connections::Connections;
pub use service::{Answer, IdempotencyService};

#[cfg(doc)]
use crate::idempotency::{Error, Fingerprint, Response};

type BoxError = Box<dyn StdError + Send + Sync>;
type ScopeOf = dyn Fn(&Parts) -> Option<Result<Scope, InvalidText>> + Send + Sync;
type Observer = dyn Fn(&Scope, Outcome<'_>) + Send + Sync;

/// What the layer did with a request, for metrics and logs.
///
/// ```
/// use pg_idempotency::tower::Outcome;
///
/// /// The label of a counter.
/// fn label(outcome: &Outcome<'_>) -> &'static str {
///     match outcome {
///         Outcome::Started => "started",
///         Outcome::TakenOver(_) => "taken_over",
///         Outcome::Replayed => "replayed",
///         Outcome::InProgress(_) => "in_progress",
///         Outcome::Mismatched => "mismatched",
///         Outcome::Unavailable(_) => "unavailable",
///         Outcome::NotStored(_) => "not_stored", // alert on this one
///         _ => "other",
///     }
/// }
/// ```
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Outcome<'a> {
    /// The handler runs for the first time.
    Started,
    /// The handler runs again, because an earlier attempt has not finished the request. Its lock has expired, or it was
    /// released after a committed phase or with a kept body. Contains the number of attempts, including this one.
    TakenOver(u32),
    /// The request is finished. The client receives the stored response.
    Replayed,
    /// Another attempt has been in progress for this long. The client receives 409.
    InProgress(Duration),
    /// The key belongs to another request. The client receives 422.
    Mismatched,
    /// The key could not be locked, because PostgreSQL is unavailable or rejected the call. The client receives 503, or 429
    /// if the scope has too many keys.
    Unavailable(&'a (dyn StdError + 'static)),
    /// The response could not be stored after the handler has returned. A repeated request gets 410. If PostgreSQL was
    /// unavailable, the key stays locked until the lock expires, and a later request runs the handler again.
    NotStored(&'a (dyn StdError + 'static)),
}

/// The guard of a request, in the extensions that its handler receives. If it is still locked when the handler returns, the layer
/// neither stores the response nor releases the key.
///
/// ```no_run
/// # #[cfg(feature = "tokio-postgres")] mod example {
/// use pg_idempotency::idempotency::{Error, Response};
/// use pg_idempotency::tower::Held;
///
/// /// In a handler of axum, `Extension(held): Extension<Held>`.
/// async fn finish(held: &Held, tx: &tokio_postgres::Transaction<'_>, response: &Response) -> Result<(), Error> {
///     held.lock().await.finish(tx, response).await
/// }
/// # }
/// ```
pub type Held = Arc<Mutex<Guard>>;

/// Put this into the extensions of a response that the layer must not store, for example because the handler had no effect. A
/// retry runs the handler again.
///
/// ```
/// use pg_idempotency::tower::DoNotStore;
///
/// let mut response = http::Response::new("try again with another card");
/// response.extensions_mut().insert(DoNotStore);
/// ```
#[derive(Debug, Clone, Copy)]
pub struct DoNotStore;

type Stores = dyn Fn(StatusCode, &HeaderMap) -> bool + Send + Sync;

/// Adds idempotency keys to a service. See the [module](self).
///
/// ```no_run
/// # #[cfg(feature = "deadpool-postgres")] mod example {
/// # use pg_idempotency::tower::IdempotencyLayer;
/// # fn example(layer: IdempotencyLayer<deadpool_postgres::Pool>) -> IdempotencyLayer<deadpool_postgres::Pool> {
/// use http::{HeaderName, HeaderValue, StatusCode};
/// use pg_idempotency::idempotency::Idempotency;
///
/// layer
///     .idempotency(Idempotency::in_schema("app").unwrap_or_default())
///     .optional() // requests without a key are passed to the handler
///     .body_limit(64 * 1024)
///     .keep_body() // for `Idempotency::abandoned`
///     .store_if(|status, _| status != StatusCode::FORBIDDEN) // also stores 404 and 409
///     .challenge(HeaderValue::from_static("Basic realm=\"shop\""))
///     .replay_header(HeaderName::from_static("x-replayed"))
///     .documentation("https://shop.example/docs/idempotency")
///     .observer(|_, outcome| println!("{outcome:?}"))
/// # }
/// # }
/// ```
#[derive(Clone)]
pub struct IdempotencyLayer<C> {
    connections: C,
    idempotency: Idempotency,
    scope: Arc<ScopeOf>,
    is_required: bool,
    keeps_body: bool,
    body_bytes_max: usize,
    stores: Arc<Stores>,
    challenge: HeaderValue,
    replay_header: HeaderName,
    documentation: String,
    observer: Arc<Observer>,
}

impl<C: Connections> IdempotencyLayer<C> {
    /// A layer that requires a key. `scope` returns the scope in which the key of a request is unique, usually its method,
    /// its path and its subject. The subject is the authenticated user or API key, never something that the client can
    /// choose. If there is no scope, the response is 401. If the scope is invalid, it is 400.
    ///
    /// A scope can be shared by several routes. Then the same key for another path is answered with 422.
    ///
    /// Within a nested router of axum, the path lacks its prefix, so that two routers would share keys. In this case, use the
    /// path of axum's `OriginalUri`, from the extensions of the request.
    ///
    /// ```no_run
    /// # #[cfg(feature = "deadpool-postgres")] mod example {
    /// # use pg_idempotency::{idempotency::Scope, tower::IdempotencyLayer};
    /// # fn example(pool: deadpool_postgres::Pool) {
    /// let layer = IdempotencyLayer::new(pool, |request: &http::request::Parts| {
    ///     let user = request.extensions.get::<String>()?; // set by the authentication
    ///     Some(Scope::new(request.method.as_str(), request.uri.path(), user))
    /// });
    /// # }
    /// # }
    /// ```
    pub fn new(
        connections: C,
        scope: impl Fn(&Parts) -> Option<Result<Scope, InvalidText>> + Send + Sync + 'static,
    ) -> IdempotencyLayer<C> {
        IdempotencyLayer {
            connections,
            idempotency: Idempotency::default(),
            scope: Arc::new(scope),
            is_required: true,
            keeps_body: false,
            body_bytes_max: REQUEST_BYTES_MAX,
            stores: Arc::new(|status, _| !matches!(status.as_u16(), 401 | 403 | 404 | 407 | 409)),
            challenge: HeaderValue::from_static("Bearer"),
            replay_header: HeaderName::from_static("idempotent-replayed"),
            documentation: "about:blank".to_owned(),
            observer: Arc::new(|_, _| ()),
        }
    }

    /// Sets the schema and the lock time.
    pub fn idempotency(self, idempotency: Idempotency) -> Self {
        IdempotencyLayer { idempotency, ..self }
    }

    /// Passes requests without a key to the handler, which then gets no [`Held`]. The default is to answer 400.
    pub fn optional(self) -> Self {
        IdempotencyLayer { is_required: false, ..self }
    }

    /// Sets the maximum size of the body of a request, which is 1 MiB by default. Larger ones are answered with 413.
    pub fn body_limit(self, bytes: usize) -> Self {
        IdempotencyLayer { body_bytes_max: bytes, ..self }
    }

    /// Stores the body of a request until it is finished, for [`Idempotency::abandoned`]. Bodies can have up to
    /// [`REQUEST_BYTES_MAX`] bytes. After a transient response (408, 425, 429, 5xx), the body stays, and
    /// [`Idempotency::abandoned`] returns the request later. A request with another response that is not stored is
    /// deleted with its body, unless a phase was committed.
    pub fn keep_body(self) -> Self {
        IdempotencyLayer { keeps_body: true, ..self }
    }

    /// Decides which responses the layer stores, by their status and headers. It never stores transient ones. The default is
    /// all except 401, 403, 404, 407 and 409.
    pub fn store_if(self, stores: impl Fn(StatusCode, &HeaderMap) -> bool + Send + Sync + 'static) -> Self {
        IdempotencyLayer { stores: Arc::new(stores), ..self }
    }

    /// Sets the header `WWW-Authenticate` of the layer's own 401, which is `Bearer` by default.
    pub fn challenge(self, challenge: HeaderValue) -> Self {
        IdempotencyLayer { challenge, ..self }
    }

    /// Sets the name of the header of replayed responses, which is `idempotent-replayed` by default. Its value is `true`.
    pub fn replay_header(self, name: HeaderName) -> Self {
        IdempotencyLayer { replay_header: name, ..self }
    }

    /// Sets the URL of the documentation for clients, which becomes the `type` of each problem.
    pub fn documentation(self, url: impl Into<String>) -> Self {
        IdempotencyLayer { documentation: url.into(), ..self }
    }

    /// Sets a function that is called with each outcome. The scope contains the subject, so do not use it as the label of a
    /// metric.
    pub fn observer(self, observer: impl Fn(&Scope, Outcome<'_>) + Send + Sync + 'static) -> Self {
        IdempotencyLayer { observer: Arc::new(observer), ..self }
    }
}

impl<C: Clone, S> Layer<S> for IdempotencyLayer<C> {
    type Service = IdempotencyService<C, S>;

    fn layer(&self, inner: S) -> IdempotencyService<C, S> {
        IdempotencyService { layer: Arc::new(self.clone()), inner }
    }
}
