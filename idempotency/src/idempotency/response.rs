use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;
use thiserror::Error;

/// The maximum size of a stored body.
pub const BODY_BYTES_MAX: usize = 1024 * 1024;

/// The maximum size of stored headers: names and values together.
pub const HEADER_BYTES_MAX: usize = 16 * 1024;

/// The response to a request and to each repetition of it.
///
/// ```
/// use pg_idempotency::idempotency::Response;
///
/// let created = Response::new(201).header("Location", "/orders/42").json(&serde_json::json!({ "order": 42 }))?;
/// assert_eq!((created.status(), created.bytes()), (201, br#"{"order":42}"#.as_slice()));
/// assert!(created.headers().any(|header| header == ("location", "/orders/42")));
/// let plain = Response::new(404).body("no such order");
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Response {
    pub(super) status: u16,
    pub(super) headers: BTreeMap<String, String>,
    pub(super) body: Vec<u8>,
}

/// Why a response cannot be stored. The transaction is unchanged.
///
/// ```no_run
/// # #[cfg(feature = "tokio-postgres")] mod example {
/// # use pg_idempotency::idempotency::*;
/// # async fn example(guard: Guard, client: &mut tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let tx = client.transaction().await?;
/// match guard.finish(&tx, &Response::new(503)).await {
///     // The transaction is unchanged: roll back, and release the guard.
///     Err(Error::Response(InvalidResponse::Transient { status })) => println!("{status} is not final"),
///     other => other?,
/// }
/// # Ok(()) }
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum InvalidResponse {
    /// Not an HTTP status.
    #[error("{status} is not an HTTP status from 100 to 599")]
    Status {
        /// The status.
        status: u16,
    },
    /// A transient status, because another attempt can have another result. Return the response to the client, roll back, and
    /// release the key.
    #[error("cannot store a response with the transient status {status}. Roll back and release the key")]
    Transient {
        /// 408, 425, 429, or 500 and above.
        status: u16,
    },
    /// The body is too large.
    #[error("the body has {bytes} bytes, but the maximum is {BODY_BYTES_MAX}. Store a reference instead")]
    BodyTooLarge {
        /// The size of the body.
        bytes: usize,
    },
    /// The headers are too large.
    #[error("the headers have {bytes} bytes, but the maximum is {HEADER_BYTES_MAX}")]
    HeadersTooLarge {
        /// The size of the headers.
        bytes: usize,
    },
    /// A header contains the character U+0000.
    #[error("the header {name:?} contains the character U+0000, which PostgreSQL cannot store")]
    Nul {
        /// The name of the header.
        name: String,
    },
}

/// Whether another attempt can have another result.
pub(crate) fn is_transient(status: u16) -> bool {
    status >= 500 || matches!(status, 408 | 425 | 429)
}

impl Response {
    /// A response without headers and body.
    pub fn new(status: u16) -> Response {
        Response { status, headers: BTreeMap::new(), body: Vec::new() }
    }

    /// Adds a header, or replaces one of the same name. Leave out headers that belong to the connection or the time, such as
    /// `Date`.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Response {
        self.headers.insert(name.into().to_ascii_lowercase(), value.into());
        self
    }

    /// Sets the body.
    pub fn body(self, body: impl Into<Vec<u8>>) -> Response {
        Response { body: body.into(), ..self }
    }

    /// Sets a JSON body and the header `content-type`.
    ///
    /// # Errors
    ///
    /// If the value cannot be serialized.
    pub fn json(self, body: &(impl Serialize + ?Sized)) -> Result<Response, serde_json::Error> {
        let body = serde_json::to_vec(body)?;
        Ok(self.header("content-type", "application/json").body(body))
    }

    /// The HTTP status.
    pub fn status(&self) -> u16 {
        self.status
    }

    /// The stored headers, with names in lower case.
    pub fn headers(&self) -> impl Iterator<Item = (&str, &str)> {
        self.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// The body.
    pub fn bytes(&self) -> &[u8] {
        &self.body
    }

    pub(crate) fn check(&self) -> Result<(), InvalidResponse> {
        let status = self.status;
        if !(100..=599).contains(&status) {
            return Err(InvalidResponse::Status { status });
        }
        if is_transient(status) {
            return Err(InvalidResponse::Transient { status });
        }
        if self.body.len() > BODY_BYTES_MAX {
            return Err(InvalidResponse::BodyTooLarge { bytes: self.body.len() });
        }
        let bytes = self.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
        if bytes > HEADER_BYTES_MAX {
            return Err(InvalidResponse::HeadersTooLarge { bytes });
        }
        match self.headers.iter().find(|(name, value)| name.contains('\0') || value.contains('\0')) {
            Some((name, _)) => Err(InvalidResponse::Nul { name: name.clone() }),
            None => Ok(()),
        }
    }
}

/// Shows only the names of the headers and the length of the body.
impl fmt::Debug for Response {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Response")
            .field("status", &self.status)
            .field("headers", &self.headers.keys())
            .field("body", &format_args!("{} bytes", self.body.len()))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn final_responses_are_stored_and_transient_ones_are_rejected() {
        for status in [200, 201, 303, 400, 402, 404, 409, 422] {
            assert_eq!(Response::new(status).check(), Ok(()), "{status}");
        }
        for status in [408, 425, 429, 500, 502, 503, 504] {
            assert_eq!(Response::new(status).check(), Err(InvalidResponse::Transient { status }));
        }
        for status in [0, 99, 600] {
            assert_eq!(Response::new(status).check(), Err(InvalidResponse::Status { status }));
        }
    }

    #[test]
    fn sizes_are_limited() {
        let of = |bytes| Response::new(200).body(vec![b'x'; bytes]).check();
        assert_eq!(of(BODY_BYTES_MAX), Ok(()));
        let bytes = 10 * BODY_BYTES_MAX;
        assert_eq!(of(bytes), Err(InvalidResponse::BodyTooLarge { bytes }));
        let headers = Response::new(200).header("a", "x".repeat(HEADER_BYTES_MAX));
        assert_eq!(headers.check(), Err(InvalidResponse::HeadersTooLarge { bytes: HEADER_BYTES_MAX + 1 }));
        assert!(matches!(Response::new(200).header("a", "\0").check(), Err(InvalidResponse::Nul { .. })));
    }

    #[test]
    fn debug_does_not_show_content() {
        let shown = format!("{:?}", Response::new(201).header("location", "secret").body("secret"));
        assert!(!shown.contains("secret") && shown.contains("6 bytes"), "{shown}");
    }
}
