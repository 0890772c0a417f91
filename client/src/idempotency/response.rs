use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;
use thiserror::Error;

/// The most bytes of a stored response's body.
pub const BODY_BYTES_MAX: usize = 1024 * 1024;

/// The most bytes of a stored response's headers, names and values together.
pub const HEADER_BYTES_MAX: usize = 16 * 1024;

/// What a request is answered with, and each repetition of it.
#[derive(Clone, PartialEq, Eq)]
pub struct Response {
    pub(super) status: u16,
    pub(super) headers: BTreeMap<String, String>,
    pub(super) body: Vec<u8>,
}

/// Why a response is not stored. The transaction is as it was.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum InvalidResponse {
    /// Not an HTTP status.
    #[error("{status} is no HTTP status from 100 to 599")]
    Status {
        /// What was given.
        status: u16,
    },
    /// An answer that another attempt may change: it must not be the request's answer for good. Answer the client
    /// with it, roll back and let go of the key.
    #[error("status {status} is a transient answer, which is not stored: roll back and release the key")]
    Transient {
        /// 408, 425, 429, or 500 and above.
        status: u16,
    },
    /// A body that is too long to be kept for each request.
    #[error("the body has {bytes} bytes; at most {BODY_BYTES_MAX} are stored: store a reference to it")]
    BodyTooLarge {
        /// How many it has.
        bytes: usize,
    },
    /// Too many or too long headers.
    #[error("the headers have {bytes} bytes; at most {HEADER_BYTES_MAX} are stored")]
    HeadersTooLarge {
        /// How many they have.
        bytes: usize,
    },
    /// A header with the character U+0000, which Postgres cannot store.
    #[error("the header {name:?} holds the character U+0000, which Postgres cannot store")]
    Nul {
        /// Its name.
        name: String,
    },
}

impl Response {
    /// A response without headers and body.
    pub fn new(status: u16) -> Response {
        Response { status, headers: BTreeMap::new(), body: Vec::new() }
    }

    /// Adds a header that a repetition is to bear too; one of the same name is replaced. Leave out what belongs to
    /// the connection or the moment, such as `Date`.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Response {
        self.headers.insert(name.into().to_ascii_lowercase(), value.into());
        self
    }

    /// Gives it these bytes as its body.
    pub fn body(self, body: impl Into<Vec<u8>>) -> Response {
        Response { body: body.into(), ..self }
    }

    /// Gives it a JSON body, and the header `content-type` that says so.
    ///
    /// # Errors
    ///
    /// If the value cannot be serialised.
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

    pub(super) fn check(&self) -> Result<(), InvalidResponse> {
        let status = self.status;
        if !(100..=599).contains(&status) {
            return Err(InvalidResponse::Status { status });
        }
        if status >= 500 || matches!(status, 408 | 425 | 429) {
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

/// Shows the names of the headers and the length of the body, and no content of either.
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
    fn definite_answers_are_stored_and_transient_ones_are_not() {
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
    fn debug_shows_no_content() {
        let shown = format!("{:?}", Response::new(201).header("location", "secret").body("secret"));
        assert!(!shown.contains("secret") && shown.contains("6 bytes"), "{shown}");
    }
}
