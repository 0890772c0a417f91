//! Opens a connection: the socket, TLS as `sslmode` requires, and the guard of the authentication.
//!
//! `tokio_postgres` answers whatever a server requests, sends passwords over its own sockets, and shows neither. So the relay
//! opens the socket itself, and hands over a stream that is already encrypted and guarded: it lets a server authenticate the relay
//! only with the methods of `require_auth`. The guard reads what the server sends until it accepts the relay. If the server
//! requests another method, reading fails before the client library sees the request, so nothing is sent.

use crate::connection::errors::{Refused, ServerError};
use crate::options::{AuthMethod, Authentication, CONNECT_TIMEOUT_MAX, Connection as Settings, Tls, TlsMode};
use postgres_openssl::{MakeTlsConnector, TlsConnector, TlsStream};
use postgres_protocol::message::backend::{Header, Message};
use rustix::net::sockopt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, Empty, ReadBuf, empty};
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio::time::{Instant, timeout};
use tokio_postgres::config::{Host, LoadBalanceHosts, SslMode, SslNegotiation, TargetSessionAttrs};
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect};
use tokio_postgres::types::private::BytesMut;
use tokio_postgres::{Client, Config, Error, SimpleQueryMessage, tls};

/// The default of `connect_timeout`.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The timeout for all addresses in the URL together, in multiples of `connect_timeout`.
pub(super) const CONNECT_TIMEOUTS: u32 = 4;
pub(super) const PORT: u16 = 5432;
/// As in the error of the system, which has a remedy.
const NO_ADDRESS: &str = "failed to lookup address information";
const READ_ONLY: &str = "database does not allow writes";
/// How many other errors the message shows next to it.
const OTHERS_SHOWN: usize = 3;
/// The message that requests TLS: its length, and a code instead of a version.
const TLS_REQUEST: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 47];

pub(super) type Connection = tokio_postgres::Connection<Empty, Guard>;

/// The servers of the url, and how to connect to them.
#[derive(Clone)]
pub(super) struct Dialer {
    /// The url. Its `ssl_mode` is not used.
    pub(super) config: Config,
    mode: TlsMode,
    is_direct: bool,
    authentication: Authentication,
    accepts_read_only: bool,
    tls: MakeTlsConnector,
}

impl Dialer {
    pub(super) fn new(settings: Settings, tls: MakeTlsConnector) -> Dialer {
        let Settings { mut config, tls: Tls { mode, .. }, authentication, accepts_read_only } = settings;
        let is_direct = config.get_ssl_negotiation() == SslNegotiation::Direct;
        // The client library then calls `Dial` first, for every server.
        config.ssl_mode(SslMode::Require).ssl_negotiation(SslNegotiation::Direct);
        Dialer { config, mode, is_direct, authentication, accepts_read_only, tls }
    }

    fn timeout(&self) -> Duration {
        self.config.get_connect_timeout().copied().unwrap_or(CONNECT_TIMEOUT).min(CONNECT_TIMEOUT_MAX)
    }

    /// Tries all addresses of the hosts in the URL one after the other, each for at most `connect_timeout`, with TLS and the login. A
    /// frozen server still accepts connections, and must not keep the relay from the server that took over. The last one gets
    /// what is left of [`CONNECT_TIMEOUTS`].
    pub(super) async fn connect(&self) -> Result<(Client, Connection), Error> {
        let end = Instant::now() + CONNECT_TIMEOUTS * self.timeout();
        let (hosts, addresses) = (self.config.get_hosts().len(), self.config.get_hostaddrs().len());
        let mut places: Vec<usize> = (0..hosts.max(addresses)).collect();
        self.shuffle(&mut places);
        let limit = |others_left: usize| {
            let left = end.saturating_duration_since(Instant::now());
            if others_left == 0 { left } else { self.timeout().min(left / (others_left as u32 + 1)) }
        };
        let mut errors: Vec<String> = Vec::new();
        for (nth, place) in places.iter().enumerate() {
            let hosts_left = places.len() - nth - 1;
            let mut targets = self.targets(*place, limit(hosts_left).min(self.timeout())).await.into_iter();
            while let Some(target) = targets.next() {
                let limit = limit(targets.len() + hosts_left);
                let error = match timeout(limit, self.start(target)).await {
                    Ok(Ok(connected)) => return Ok(connected),
                    Ok(Err(error)) => ServerError::from(error).to_string(),
                    Err(_) => format!("no response within {limit:.0?}"),
                };
                tracing::debug!("connecting to PostgreSQL: {error}");
                errors.push(error);
            }
        }
        self.start(Err(Refused(summary(errors)))).await
    }

    fn shuffle<T>(&self, places: &mut [T]) {
        if self.config.get_load_balance_hosts() == LoadBalanceHosts::Random {
            fastrand::shuffle(places);
        }
    }

    /// The addresses of a host, with the name against which a certificate is checked.
    async fn targets(&self, place: usize, limit: Duration) -> Vec<Result<(Address, String), Refused>> {
        let host = self.config.get_hosts().get(place);
        let mut addresses = match timeout(limit, self.addresses(host, place)).await {
            Ok(Ok(addresses)) => addresses,
            Ok(Err(error)) => return vec![Err(Refused(error.to_string()))],
            Err(_) => return vec![Err(Refused(format!("{NO_ADDRESS}: no response within {limit:.0?}")))],
        };
        self.shuffle(&mut addresses);
        let named = |address| {
            let name = match (host, &address) {
                (Some(Host::Tcp(name)), _) => name.clone(),
                (_, Address::Tcp(address)) => address.ip().to_string(),
                (_, Address::Unix(_)) => "localhost".to_owned(),
            };
            Ok((address, name))
        };
        match addresses.is_empty() {
            true => vec![Err(Refused("the host has no address".to_owned()))],
            false => addresses.into_iter().map(named).collect(),
        }
    }

    async fn addresses(&self, host: Option<&Host>, place: usize) -> io::Result<Vec<Address>> {
        let ports = self.config.get_ports();
        let port = ports.get(place).or(ports.first()).copied().unwrap_or(PORT);
        if let Some(address) = self.config.get_hostaddrs().get(place) {
            return Ok(vec![Address::Tcp((*address, port).into())]);
        }
        match host {
            Some(Host::Unix(folder)) => Ok(vec![Address::Unix(folder.join(format!(".s.PGSQL.{port}")))]),
            Some(Host::Tcp(name)) => {
                Ok(lookup_host((name.as_str(), port)).await?.map(Address::Tcp).collect())
            }
            None => Ok(Vec::new()),
        }
    }

    /// Opens the connection and logs in. Errors of the client library can be created only by the library, so an error of
    /// ours takes the same way.
    async fn start(&self, target: Result<(Address, String), Refused>) -> Result<(Client, Connection), Error> {
        let dial = Dial { target, dialer: self.clone() };
        let (client, mut connection) = self.config.connect_raw(empty(), dial).await?;
        if self.config.get_target_session_attrs() == TargetSessionAttrs::ReadWrite {
            // As in libpq: a primary whose transactions are read-only by default is still a primary.
            let query = match self.accepts_read_only {
                true => "SELECT CASE WHEN pg_catalog.pg_is_in_recovery() THEN 'on' END",
                false => "SHOW transaction_read_only",
            };
            let read_only = tokio::select! {
                biased;
                Err(error) = &mut connection => return Err(error),
                rows = client.simple_query(query) => rows?.iter().any(is_on),
            };
            if read_only {
                let refused = Refused(READ_ONLY.to_owned());
                return Box::pin(self.start(Err(refused))).await;
            }
        }
        Ok((client, connection))
    }
}

/// The last error, and those of other addresses. If only a standby answers, its refusal would hide why the primary failed.
fn summary(mut errors: Vec<String>) -> String {
    let last = errors.pop().unwrap_or_default();
    let mut shown = vec![last];
    for error in errors {
        if error != READ_ONLY && !shown.contains(&error) && shown.len() <= OTHERS_SHOWN {
            shown.push(error);
        }
    }
    shown.join("; another address: ")
}

fn is_on(message: &SimpleQueryMessage) -> bool {
    matches!(message, SimpleQueryMessage::Row(row) if row.get(0) == Some("on"))
}

enum Address {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

/// One attempt to open a connection. The client library calls it instead of a TLS handshake.
struct Dial {
    /// The address and the name of the server.
    target: Result<(Address, String), Refused>,
    dialer: Dialer,
}

impl TlsConnect<Empty> for Dial {
    type Stream = Guard;
    type Error = Refused;
    type Future = Pin<Box<dyn Future<Output = Result<Guard, Refused>> + Send>>;

    fn connect(self, _: Empty) -> Self::Future {
        Box::pin(self.open())
    }
}

impl Dial {
    async fn open(mut self) -> Result<Guard, Refused> {
        let (address, name) = self.target?;
        let limit = self.dialer.timeout();
        let opened = timeout(limit, socket(&self.dialer, &address)).await;
        let raw = opened.unwrap_or_else(|_| Err(Refused("connection timed out".to_owned())))?;
        let tls = MakeTlsConnect::<TcpStream>::make_tls_connect(&mut self.dialer.tls, &name);
        let tls = tls.map_err(|error| Refused(format!("TLS cannot be set up: {error}")))?;
        // As in libpq, `sslmode` does not apply to a Unix socket.
        let (stream, allowed) = match address {
            Address::Unix(_) => (raw, self.dialer.authentication.unverified()),
            Address::Tcp(_) => (negotiate(raw, tls, &self.dialer).await?, self.dialer.authentication),
        };
        Ok(Guard { stream, requests: Some(Requests { allowed, ..Requests::default() }) })
    }
}

async fn socket(dialer: &Dialer, address: &Address) -> Result<Raw, Refused> {
    let failed = |error: io::Error| Refused(error.to_string());
    match address {
        Address::Tcp(address) => {
            let stream = TcpStream::connect(address).await.map_err(failed)?;
            stream.set_nodelay(true).and_then(|()| detect_death(&stream, &dialer.config)).map_err(failed)?;
            Ok(Box::new(stream))
        }
        Address::Unix(path) => {
            let stream = UnixStream::connect(path).await.map_err(failed)?;
            if let Some(expected) = &dialer.authentication.peer {
                let peer = stream.peer_cred().map_err(failed)?.uid();
                check_peer(expected, peer)?;
            }
            Ok(Box::new(stream))
        }
    }
}

fn detect_death(stream: &TcpStream, config: &Config) -> io::Result<()> {
    let socket = stream.as_fd();
    if let Some(time) = config.get_tcp_user_timeout() {
        let milliseconds = u32::try_from(time.as_millis()).unwrap_or(u32::MAX);
        sockopt::set_tcp_user_timeout(socket, milliseconds)?;
    }
    if config.get_keepalives() {
        sockopt::set_socket_keepalive(socket, true)?;
        sockopt::set_tcp_keepidle(socket, config.get_keepalives_idle())?;
        if let Some(time) = config.get_keepalives_interval() {
            sockopt::set_tcp_keepintvl(socket, time)?;
        }
        if let Some(retries) = config.get_keepalives_retries() {
            sockopt::set_tcp_keepcnt(socket, retries)?;
        }
    }
    Ok(())
}

/// The kernel reports this user for a peer that has no number in the user namespace of this process.
const OVERFLOW_UID: u32 = 65_534;

/// `requirepeer`: whether the process that opened the socket belongs to this user, by name or by number.
fn check_peer(expected: &str, uid: u32) -> Result<(), Refused> {
    let user = uzers::get_user_by_uid(uid);
    let name = user.map_or_else(|| uid.to_string(), |user| user.name().to_string_lossy().into_owned());
    if expected == name || expected.parse() == Ok(uid) {
        return Ok(());
    }
    let hidden = if uid == OVERFLOW_UID {
        ". A user namespace hides other users. In the systemd unit, set PrivateUsers=no with `systemctl edit`"
    } else {
        ""
    };
    Err(Refused(format!("requirepeer is \"{expected}\", but the server runs as \"{name}\"{hidden}")))
}

async fn negotiate(mut raw: Raw, tls: TlsConnector, dialer: &Dialer) -> Result<Raw, Refused> {
    if dialer.mode == TlsMode::Disable {
        return Ok(raw);
    }
    if !dialer.is_direct {
        let mut answer = [0];
        let asked = async {
            raw.write_all(&TLS_REQUEST).await?;
            // Not one byte more: the rest must be encrypted.
            raw.read_exact(&mut answer).await
        };
        asked.await.map_err(|error| Refused(format!("error communicating with the server: {error}")))?;
        match answer[0] {
            b'S' => {}
            b'N' if dialer.mode == TlsMode::Prefer => return Ok(raw),
            b'N' => return Err(Refused("server does not support TLS".to_owned())),
            _ => return Err(Refused("the server did not answer the request for TLS".to_owned())),
        }
    }
    match tls.connect(raw).await {
        Ok(secured) => Ok(Box::new(secured)),
        Err(error) => Err(Refused(format!("TLS handshake failed: {error}"))),
    }
}

/// A socket, or TLS over one.
trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl Duplex for TcpStream {}
impl Duplex for UnixStream {}

impl Duplex for TlsStream<Raw> {
    fn channel_binding(&self) -> ChannelBinding {
        tls::TlsStream::channel_binding(self)
    }
}

type Raw = Box<dyn Duplex>;

pub(crate) struct Guard {
    stream: Raw,
    /// `None` after the server has accepted the relay.
    requests: Option<Requests>,
}

impl AsyncRead for Guard {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
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
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

impl tls::TlsStream for Guard {
    fn channel_binding(&self) -> ChannelBinding {
        self.stream.channel_binding()
    }
}

/// Reads the messages of a server that authenticates the relay.
#[derive(Default)]
struct Requests {
    allowed: Authentication,
    /// The beginning of a message.
    unread: BytesMut,
    is_answered: bool,
}

impl Requests {
    /// Returns whether the server has accepted the relay. What cannot be parsed also makes the client library fail.
    fn read(&mut self, bytes: &[u8]) -> Result<bool, Refused> {
        self.unread.extend_from_slice(bytes);
        // The parser would reserve memory for a message that has not arrived.
        while let Ok(Some(header)) = Header::parse(&self.unread)
            && self.unread.len() > header.len() as usize
            && let Ok(Some(message)) = Message::parse(&mut self.unread)
        {
            if self.is_accepted(&message)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn is_accepted(&mut self, message: &Message) -> Result<bool, Refused> {
        let (method, what) = match message {
            Message::AuthenticationOk if self.is_answered => return Ok(true),
            Message::AuthenticationOk => (AuthMethod::None, "accepts the relay without authentication"),
            Message::AuthenticationCleartextPassword => {
                (AuthMethod::Password, "requests the password in clear text")
            }
            Message::AuthenticationMd5Password(_) => {
                (AuthMethod::Md5, "requests an MD5 hash of the password")
            }
            Message::AuthenticationSasl(_) => (AuthMethod::ScramSha256, "requests SCRAM"),
            // The rest of SCRAM, and what the client library does not support.
            _ => return Ok(false),
        };
        self.is_answered = true;
        if self.allowed.methods.contains(&method) {
            return Ok(method == AuthMethod::None);
        }
        let allowed: Vec<_> = self.allowed.methods.iter().map(|method| method.name()).collect();
        let (method, allowed) = (method.name(), allowed.join(", "));
        Err(Refused(format!("the server {what} ({method}), but only {allowed} may be used")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peer_is_compared_by_name_or_number() {
        for expected in ["root", "0"] {
            assert!(check_peer(expected, 0).is_ok(), "{expected}");
        }
        for (expected, uid) in [("postgres", 0), ("root", 12_345_678), ("1", 0), ("", 0)] {
            assert!(check_peer(expected, uid).is_err(), "{expected}");
        }
        let error = check_peer("postgres", 12_345_678).unwrap_err().to_string();
        assert_eq!(error, "requirepeer is \"postgres\", but the server runs as \"12345678\"");
        let error = check_peer("postgres", OVERFLOW_UID).unwrap_err().to_string();
        assert!(error.contains("set PrivateUsers=no"), "{error}");
    }

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
                let allowed = Authentication { methods: methods.to_vec(), ..Authentication::default() };
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
