//! Lets a server authenticate the relay only with the methods of `require_auth`.
//!
//! The guard reads what the server sends until it accepts the relay. If the server requests another method, reading fails
//! before the client library sees the request, so nothing is sent.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use postgres_openssl::TlsStream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::tls::{self, ChannelBinding};

use super::dial::Refused;
use crate::options::{AuthMethod, Authentication};

/// A socket.
pub(super) trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Duplex for S {}
pub(super) type Raw = Box<dyn Duplex>;

/// A connection to a server, encrypted or not.
pub(super) enum Stream {
    Plain(Raw),
    Tls(TlsStream<Raw>),
}

pub(crate) struct Guard {
    stream: Stream,
    /// `None` after the server has accepted the relay.
    requests: Option<Requests>,
}

impl Guard {
    pub(super) fn new(stream: Stream, allowed: Authentication) -> Guard {
        Guard { stream, requests: Some(Requests { allowed, ..Requests::default() }) }
    }

    fn stream(&mut self) -> Pin<&mut dyn Duplex> {
        match &mut self.stream {
            Stream::Plain(raw) => Pin::new(raw),
            Stream::Tls(tls) => Pin::new(tls),
        }
    }
}

impl AsyncRead for Guard {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(self.stream().poll_read(context, buffer))?;
        if let Some(requests) = &mut self.requests {
            match requests.read(&buffer.filled()[before..]) {
                Ok(is_accepted) if is_accepted => self.requests = None,
                Ok(_) => {}
                Err(refused) => {
                    buffer.set_filled(before);
                    return Poll::Ready(Err(io::Error::other(refused)));
                }
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Guard {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.stream().poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream().poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream().poll_shutdown(context)
    }
}

impl tls::TlsStream for Guard {
    fn channel_binding(&self) -> ChannelBinding {
        match &self.stream {
            Stream::Plain(_) => ChannelBinding::none(),
            Stream::Tls(tls) => tls.channel_binding(),
        }
    }
}

/// Reads the messages of a server that authenticates the relay: a type, a length, and a body. The body of the type `R` begins
/// with a number that says what the server requests.
#[derive(Default)]
struct Requests {
    allowed: Authentication,
    /// The beginning of the message, up to the number.
    head: Vec<u8>,
    /// The rest of its body.
    skip: usize,
    is_answered: bool,
}

impl Requests {
    /// Returns whether the server has accepted the relay.
    fn read(&mut self, mut bytes: &[u8]) -> Result<bool, Refused> {
        while let Some((&first, rest)) = bytes.split_at_checked(self.skip).and_then(|(_, b)| b.split_first())
        {
            self.skip = 0;
            bytes = rest;
            self.head.push(first);
            let (length, counted) = match *self.head {
                [b'R', a, b, c, d, e, f, g, h] => {
                    if self.is_accepted(u32::from_be_bytes([e, f, g, h]))? {
                        return Ok(true);
                    }
                    ([a, b, c, d], 8)
                }
                [kind, a, b, c, d] if kind != b'R' => ([a, b, c, d], 4),
                _ => continue,
            };
            self.head.clear();
            self.skip = (u32::from_be_bytes(length) as usize).saturating_sub(counted);
        }
        self.skip = self.skip.saturating_sub(bytes.len());
        Ok(false)
    }

    /// Judges what the server requests. 0 means that it accepts the relay.
    fn is_accepted(&mut self, request: u32) -> Result<bool, Refused> {
        let (method, what) = match request {
            0 if self.is_answered => return Ok(true),
            0 => (AuthMethod::None, "accepts the relay without authentication"),
            3 => (AuthMethod::Password, "requests the password in clear text"),
            5 => (AuthMethod::Md5, "requests an MD5 hash of the password"),
            10 => (AuthMethod::ScramSha256, "requests SCRAM"),
            // The rest of SCRAM, and what the client library does not support.
            _ => return Ok(false),
        };
        self.is_answered = true;
        if self.allowed.methods.contains(&method) {
            return Ok(request == 0);
        }
        let allowed: Vec<_> = self.allowed.methods.iter().map(|method| method.name()).collect();
        let (method, allowed) = (method.name(), allowed.join(", "));
        Err(Refused(format!("the server {what} ({method}), but only {allowed} may be used")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCRAM: &[u8] = b"R\0\0\0\x17\0\0\0\x0aSCRAM-SHA-256\0\0";
    const CONTINUE: &[u8] = b"R\0\0\0\x0c\0\0\0\x0bR\0\0\0";
    const OK: &[u8] = b"R\0\0\0\x08\0\0\0\0";
    const CLEAR: &[u8] = b"R\0\0\0\x08\0\0\0\x03";
    const MD5: &[u8] = b"R\0\0\0\x0c\0\0\0\x05salt";
    const NOTICE: &[u8] = b"N\0\0\0\x0dR\0\0\0\x08\0\0\0\x03";

    /// The result of all bytes, in pieces of each size.
    fn read(methods: &[AuthMethod], messages: &[&[u8]]) -> Result<bool, String> {
        let bytes = messages.concat();
        let all: Vec<_> = (1..=bytes.len())
            .map(|size| {
                let allowed = Authentication { methods: methods.to_vec(), peer: None };
                let mut requests = Requests { allowed, ..Requests::default() };
                let mut pieces = bytes.chunks(size).map(|piece| requests.read(piece));
                let last = pieces.find(|read| !matches!(read, Ok(false))).unwrap_or(Ok(false));
                last.map_err(|error| error.to_string())
            })
            .collect();
        assert!(all.iter().all(|one| *one == all[0]), "{all:?}");
        all[0].clone()
    }

    #[test]
    fn only_allowed_methods_pass() {
        use AuthMethod::{Md5, None, Password, ScramSha256};
        let safe = &[ScramSha256, None][..];
        assert_eq!(read(safe, &[NOTICE, SCRAM, CONTINUE]), Ok(false));
        assert_eq!(read(safe, &[NOTICE, SCRAM, CONTINUE, OK]), Ok(true));
        assert_eq!(read(&[ScramSha256], &[SCRAM, CONTINUE, OK]), Ok(true));
        assert_eq!(read(safe, &[OK]), Ok(true));
        assert_eq!(read(&[Password], &[CLEAR]), Ok(false));
        assert_eq!(read(&[Password], &[CLEAR, OK]), Ok(true));
        assert_eq!(read(&[Md5], &[MD5, OK]), Ok(true));
        for (methods, messages, refused) in [
            (safe, &[CLEAR][..], "in clear text (password), but only scram-sha-256, none may be used"),
            (safe, &[NOTICE, MD5], "an MD5 hash of the password (md5)"),
            (safe, &[SCRAM, CONTINUE, CLEAR], "in clear text (password)"),
            (&[ScramSha256], &[OK], "without authentication (none)"),
            (&[Password], &[SCRAM], "SCRAM (scram-sha-256)"),
        ] {
            let error = read(methods, messages).unwrap_err();
            assert!(error.contains(refused), "{error}");
        }
    }
}
