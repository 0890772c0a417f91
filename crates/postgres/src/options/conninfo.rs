//! The parameters of a libpq connection string: splits them, so that none is ignored, and applies those that protect the
//! connection or differ from libpq. Those are TLS, and `require_auth` and `requirepeer`, which decide which servers get the
//! password, and how.

use crate::is_in;
use crate::options::Connection;
use openssl::ssl::SslVersion;
use settings::choice;
use settings::file::nearest;
use settings::findings::Problem;
use settings::reader::check_key;
use settings::secret::{Lookup, Secret};
use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::Duration;
use tokio_postgres::Config;
use tokio_postgres::config::{ChannelBinding, Host, SslNegotiation, TargetSessionAttrs};

pub(super) struct Conninfo {
    /// For `tokio_postgres`: the same string, with only the parameters that it handles.
    pub(super) rest: String,
    /// Every key and value, in order. [`ConnectionBuilder::set`] applies those that `tokio_postgres` does not.
    pub(super) parameters: Vec<(String, String)>,
}

/// The relay applies these, because `tokio_postgres` does not support them or differs from libpq.
const OWN: &str = "sslmode sslrootcert sslcert sslkey sslpassword sslcrl sslcrldir sslsni ssl_min_protocol_version \
                   ssl_max_protocol_version tcp_user_timeout target_session_attrs connect_timeout require_auth requirepeer";

/// `tokio_postgres` handles these like libpq.
const PASSED: &str = "user password dbname options application_name sslnegotiation host hostaddr port keepalives \
                      keepalives_idle keepalives_interval keepalives_count channel_binding load_balance_hosts";

/// Restricted parameters: their names, the values that the relay accepts (none if it does not support them), and the help for
/// other values.
const RESTRICTED: &[(&str, &str, &str)] = &[
    ("client_encoding", "UTF8 utf8 UTF-8 utf-8", "remove it: the relay always uses UTF8"),
    ("gssencmode", "disable prefer", "set sslmode=verify-full to encrypt: the relay does not support GSSAPI"),
    ("gssdelegation", "0", "remove it: the relay does not support GSSAPI"),
    ("max_protocol_version", "3.0 3.2 latest", "remove it: the relay uses version 3.0"),
    ("min_protocol_version", "3.0", "remove it: the relay uses version 3.0"),
    ("replication", "false off no 0", "remove it: the relay does not use replication"),
    (
        "sslcertmode",
        "allow",
        "remove it: the relay sends the client certificate if it is set and the server requests it",
    ),
    ("sslcompression", "0", "remove it: TLS compression is insecure and never used"),
    ("fallback_application_name", "", "set application_name, in the url or in [postgres]"),
    ("gsslib krbsrvname", "", "use SCRAM or a client certificate: the relay does not support GSSAPI"),
    ("oauth_client_id oauth_client_secret oauth_issuer oauth_scope", "", NO_OAUTH),
    ("passfile", "", "write only the password to a file, and set [postgres] password_file"),
    ("requiressl ssl", "", "set sslmode=verify-full and sslrootcert"),
    ("scram_client_key scram_server_key", "", "set [postgres] password_file"),
    ("service servicefile", "", "add the parameters of the service to the url"),
    ("sslkeylogfile", "", "remove it: anyone who can read that file can read the events"),
];
const NO_OAUTH: &str = "use SCRAM or a client certificate to authenticate with PostgreSQL";

/// Splits a URL or a `key=value` string. Messages do not quote it, because it may contain a password.
pub(super) fn split(text: &str) -> Result<Conninfo, Vec<Problem>> {
    let url = text.strip_prefix("postgres://").or_else(|| text.strip_prefix("postgresql://"));
    let split = url.map_or_else(|| key_values(text), url_parameters);
    let mut parameters: Vec<(String, String)> = Vec::new();
    for (key, value) in split.map_err(|problem| vec![problem])? {
        // As in libpq, the last value of a key applies.
        parameters.retain(|(known, _)| *known != key);
        parameters.push((key, value));
    }
    let problems: Vec<_> = parameters.iter().filter_map(|(key, value)| check(key, value).err()).collect();
    if !problems.is_empty() {
        return Err(problems);
    }
    let passed = parameters.iter().filter(|(key, _)| is_in(PASSED, key)).map(|(key, value)| {
        let key = if key == "keepalives_count" { "keepalives_retries" } else { key };
        format!("{key}='{}'", value.replace('\\', "\\\\").replace('\'', "\\'"))
    });
    Ok(Conninfo { rest: passed.collect::<Vec<_>>().join(" "), parameters })
}

/// Whether the relay supports the parameter with this value.
fn check(key: &str, value: &str) -> Result<(), Problem> {
    if is_in(OWN, key) || is_in(PASSED, key) {
        return Ok(());
    }
    if let Some(&(_, values, help)) = RESTRICTED.iter().find(|(keys, ..)| is_in(keys, key)) {
        let message = match values {
            "" => format!("connection parameter {key} is not supported by the relay"),
            _ if is_in(values, value) => return Ok(()),
            _ => format!("connection parameter {key} can only be {}", values.replace(' ', " or ")),
        };
        return Err(Problem::new(message, help));
    }
    // An unknown key may be part of a password, so it is quoted only if it is similar to a known one.
    if let Some(near) = nearest(key, OWN.split(' ').chain(PASSED.split(' '))) {
        let message = format!("unknown connection parameter {key}");
        return Err(Problem::new(message, format!("did you mean {near}?")));
    }
    let help = "remove it. If it is part of the password, percent-encode special characters in the password";
    Err(Problem::new("unknown connection parameter", help))
}

/// Splits a URL without its prefix, and decodes its parts.
fn url_parameters(url: &str) -> Result<Vec<(String, String)>, Problem> {
    // As in libpq, credentials end at an @ before the first slash. But a password may contain a slash, if it does not begin like
    // a port.
    let has_password = |(user, rest): (&str, &str)| {
        let port = rest.split(['/', ',']).next().unwrap_or_default();
        !user.contains(['/', '[']) && port.parse::<u16>().is_err()
    };
    let until_at = |ends: &[char]| url.find(ends).filter(|at| url[*at..].starts_with('@'));
    let with_slash = || url.split_once(':').filter(|parts| has_password(*parts)).and(until_at(&['@', '?']));
    let at = until_at(&['@', '/']).or_else(with_slash);
    let (credentials, rest) = at.map_or(("", url), |at| (&url[..at], &url[at + 1..]));
    let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (servers, database) = place.split_once('/').unwrap_or((place, ""));
    let (user, password) = credentials.split_once(':').unwrap_or((credentials, ""));
    let (mut hosts, mut ports) = (Vec::new(), Vec::new());
    for server in servers.split(',') {
        let parts = match server.strip_prefix('[') {
            Some(address) => address.split_once(']'),
            None => Some(server.split_at(server.find(':').unwrap_or(server.len()))),
        };
        let port = parts.and_then(|(_, port)| port.strip_prefix(':').or(port.is_empty().then_some("")));
        let (Some((host, _)), Some(port)) = (parts, port) else {
            let message = "[postgres] url has an invalid value for host";
            return Err(Problem::new(message, "write host:port, or [address]:port for an IPv6 address"));
        };
        hosts.push(host);
        ports.push(if port.is_empty() { "5432" } else { port });
    }
    let ports = if ports.iter().all(|port| *port == "5432") { String::new() } else { ports.join(",") };
    let parts = [
        ("user", user),
        ("password", password),
        ("host", &hosts.join(",")),
        ("port", &ports),
        ("dbname", database),
    ];
    let mut parameters = Vec::new();
    for (key, value) in parts.into_iter().filter(|(_, value)| !value.is_empty()) {
        let message = format!("[postgres] url has an invalid percent encoding in its {key}");
        let invalid = Problem::new(message, "percent-encode special characters, % as %25");
        parameters.push((key.to_owned(), percent_decode(value).ok_or(invalid)?));
    }
    for part in query.split('&').filter(|part| !part.is_empty()) {
        let malformed = || Problem::new("the query of the url is malformed", "write ?key=value&key=value");
        let (key, value) = part.split_once('=').ok_or_else(malformed)?;
        parameters.push(percent_decode(key).zip(percent_decode(value)).ok_or_else(malformed)?);
    }
    Ok(parameters)
}

/// Splits `key=value key='value'`, with backslash escapes.
fn key_values(text: &str) -> Result<Vec<(String, String)>, Problem> {
    let malformed = || {
        let help = "for example \"postgres://user@host/database\" or \"host=db user=relay dbname=app\"";
        Problem::new("[postgres] url is neither a postgres:// URL nor a list of key=value", help)
    };
    let mut parameters = Vec::new();
    let mut characters = text.chars().peekable();
    while let Some(first) = characters.by_ref().find(|c| !c.is_whitespace()) {
        let mut key = String::from(first);
        key.extend(std::iter::from_fn(|| characters.next_if(|c| *c != '=' && !c.is_whitespace())));
        let sign = characters.by_ref().find(|c| !c.is_whitespace());
        while characters.next_if(|c| c.is_whitespace()).is_some() {}
        let quoted = characters.next_if_eq(&'\'').is_some();
        let mut value = String::new();
        while let Some(c) = characters.next_if(|c| if quoted { *c != '\'' } else { !c.is_whitespace() }) {
            value.extend(if c == '\\' { characters.next() } else { Some(c) });
        }
        let is_closed = !quoted || characters.next().is_some();
        if first == '=' || sign != Some('=') || !is_closed {
            return Err(malformed());
        }
        parameters.push((key, value));
    }
    if parameters.is_empty() { Err(malformed()) } else { Ok(parameters) }
}

fn percent_decode(text: &str) -> Option<String> {
    let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => u8::try_from(digit(rest.next())? * 16 + digit(rest.next())?).ok()?,
            _ => byte,
        });
    }
    String::from_utf8(bytes).ok()
}

/// The parameters of a connection that the relay applies itself. Later ones override earlier ones.
pub(super) struct ConnectionBuilder<'a> {
    lookup: &'a Lookup,
    pub(super) connection: Connection,
    pub(super) mode: Option<TlsMode>,
    trusts_system: bool,
}

impl ConnectionBuilder<'_> {
    pub(super) fn new(lookup: &Lookup, config: Config) -> ConnectionBuilder<'_> {
        let connection = Connection { config, ..Connection::default() };
        ConnectionBuilder { lookup, connection, mode: None, trusts_system: false }
    }

    /// Applies a parameter, unless `tokio_postgres` handles it. Fails with help for the value.
    pub(super) fn set(&mut self, key: &str, value: &str) -> Result<(), &'static str> {
        let path = || (!value.is_empty()).then(|| self.lookup.resolve(value));
        let version = || match value {
            "TLSv1.2" => Ok(Some(SslVersion::TLS1_2)),
            "TLSv1.3" => Ok(Some(SslVersion::TLS1_3)),
            _ => Err("set TLSv1.2 or TLSv1.3: older versions are insecure"),
        };
        let positive = |help| value.parse::<i64>().map(|number| number.max(0) as u64).map_err(|_| help);
        // Whether Linux accepts the value. In libpq, 0 means its default.
        let is_within = |most: u32| value.parse::<u32>().is_ok_and(|number| number <= most);
        let Connection { config, tls, authentication, accepts_read_only } = &mut self.connection;
        match key {
            "sslmode" if value == "allow" => {
                return Err("set prefer or verify-full: allow would use TLS only if the server requires it");
            }
            "sslmode" => {
                let help = "set one of disable, prefer, require, verify-ca, verify-full";
                self.mode = Some(TlsMode::named(value).ok_or(help)?);
            }
            "sslrootcert" => {
                self.trusts_system = value == "system";
                tls.root_cert = path().filter(|_| value != "system");
            }
            "sslcert" => tls.client_cert = path(),
            "sslkey" => tls.client_key = path(),
            "sslpassword" => tls.key_password = Some(Secret::new(value)),
            "sslcrl" => tls.crl = path(),
            "sslcrldir" => tls.crl_dir = path(),
            "sslsni" if ["0", "1"].contains(&value) => tls.hides_host = value == "0",
            "sslsni" => return Err("set 1, or 0 to hide the host name"),
            "ssl_min_protocol_version" => tls.version_min = version()?,
            "ssl_max_protocol_version" => tls.version_max = version()?,
            "connect_timeout" => match positive("set a number of seconds")? {
                0 => {}
                seconds => _ = config.connect_timeout(Duration::from_secs(seconds)),
            },
            // The unit is milliseconds in libpq, but seconds in tokio_postgres.
            "tcp_user_timeout" => match positive("set a number of milliseconds")? {
                0 => {}
                milliseconds if milliseconds > i32::MAX as u64 => return Err("set at most 2147483647"),
                milliseconds => _ = config.tcp_user_timeout(Duration::from_millis(milliseconds)),
            },
            "keepalives_count" if !is_within(127) => return Err("set a number from 0 to 127"),
            "keepalives_idle" | "keepalives_interval" if !is_within(32_767) => {
                return Err("set a number of seconds from 0 to 32767");
            }
            "target_session_attrs" => {
                config.target_session_attrs(match value {
                    "any" => TargetSessionAttrs::Any,
                    "read-write" | "primary" => TargetSessionAttrs::ReadWrite,
                    _ => return Err("set any or read-write: the relay needs to write"),
                });
                *accepts_read_only = value == "primary";
            }
            "requirepeer" => authentication.peer = Some(value.to_owned()).filter(|peer| !peer.is_empty()),
            "require_auth" if value.is_empty() => authentication.methods.clear(),
            "require_auth" => {
                authentication.methods = methods(value).ok_or(
                    "set one or more of password, md5, scram-sha-256 and none, separated by commas; or exclude some, each \
                     with an exclamation mark: \"!password,!md5\"",
                )?;
            }
            _ => {}
        }
        Ok(())
    }

    /// The settings of the connection, and the problems of the parameters and their files.
    pub(super) fn resolve(self) -> (Connection, Vec<Problem>) {
        let ConnectionBuilder { lookup, mut connection, mode, trusts_system } = self;
        let mode = match mode {
            // As in libpq.
            Some(TlsMode::Require) if connection.tls.root_cert.is_some() => TlsMode::VerifyCa,
            Some(mode) => mode,
            None if connection.is_local() => TlsMode::Prefer,
            None => TlsMode::VerifyFull,
        };
        let Connection { config, tls, authentication, .. } = &mut connection;
        tls.mode = mode;
        authentication.resolve(mode);
        let mut problems = Vec::new();
        let mut report = |message: &str, help: &str| problems.push(Problem::new(message, help));
        let verify = "set sslmode to verify-full";
        if trusts_system && mode < TlsMode::VerifyFull {
            report("sslrootcert is \"system\", which is secure only with sslmode verify-full", verify);
        }
        if !trusts_system && mode == TlsMode::VerifyCa && tls.root_cert.is_none() {
            report(
                "sslmode is verify-ca without sslrootcert, so any server with a public certificate would be accepted",
                "set sslmode to verify-full, or set sslrootcert",
            );
        }
        if tls.client_cert.is_some() != tls.client_key.is_some() {
            report("only one of sslcert and sslkey is set", "set both or neither");
        }
        if (tls.version_min, tls.version_max) == (Some(SslVersion::TLS1_3), Some(SslVersion::TLS1_2)) {
            let help = "remove ssl_max_protocol_version";
            report("ssl_max_protocol_version is lower than ssl_min_protocol_version", help);
        }
        if (tls.crl.is_some() || tls.crl_dir.is_some()) && mode < TlsMode::VerifyCa {
            let help = "set sslmode to verify-full, or remove sslcrl and sslcrldir";
            report(&format!("sslmode is {mode}, so sslcrl and sslcrldir have no effect"), help);
        }
        if config.get_channel_binding() == ChannelBinding::Require && mode == TlsMode::Disable {
            report("channel_binding is require, which needs TLS, but sslmode is disable", verify);
        }
        if config.get_ssl_negotiation() == SslNegotiation::Direct && mode < TlsMode::Require {
            report(&format!("sslnegotiation is direct, which needs TLS, but sslmode is {mode}"), verify);
        }
        let has_socket = config.get_hosts().iter().any(|host| matches!(host, Host::Unix(_)));
        if authentication.peer.is_some() && !has_socket {
            let help = "remove requirepeer, or set host to the directory of the socket";
            report("requirepeer has no effect, because no host is a Unix socket", help);
        }
        problems.extend(unequal_numbers(config));
        problems.extend(tls.unreadable_files(lookup));
        problems.extend(tls.client_key.as_deref().and_then(|key| check_key("sslkey", key).err()));
        (connection, problems)
    }
}

/// How the connection is encrypted, and how the server is verified.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    pub mode: TlsMode,
    /// The trusted certificate authorities; `None` for those of the system.
    pub root_cert: Option<PathBuf>,
    pub client_cert: Option<PathBuf>,
    /// The client's key, set if and only if the certificate is set.
    pub client_key: Option<PathBuf>,
    pub key_password: Option<Secret>,
    pub crl: Option<PathBuf>,
    /// A folder of revocation lists, named by hash as in OpenSSL.
    pub crl_dir: Option<PathBuf>,
    /// Whether not to send the host name to the server (SNI).
    pub hides_host: bool,
    /// The oldest version of TLS; `None` for 1.2.
    pub version_min: Option<SslVersion>,
    /// The newest version of TLS; `None` for the newest of OpenSSL.
    pub version_max: Option<SslVersion>,
}

impl Tls {
    fn unreadable_files(&self, lookup: &Lookup) -> impl Iterator<Item = Problem> {
        let files = [
            ("sslrootcert", &self.root_cert),
            ("sslcert", &self.client_cert),
            ("sslkey", &self.client_key),
            ("sslcrl", &self.crl),
            ("sslcrldir", &self.crl_dir),
        ];
        files.into_iter().filter_map(move |(key, path)| {
            let path = path.as_ref()?;
            let error = std::fs::File::open(path).err()?;
            let help = match error.kind() {
                ErrorKind::PermissionDenied => "make it readable for the user that runs the relay".to_owned(),
                _ => lookup.help_with_absent(),
            };
            Some(Problem::new(format!("{key}: cannot read {}: {error}", path.display()), help))
        })
    }
}

choice! {
    /// How far TLS is required and verified: libpq's `sslmode`.
    #[derive(PartialOrd, Ord, Default)]
    TlsMode {
        Disable = "disable",
        /// TLS if the server supports it, without verification.
        #[default]
        Prefer = "prefer",
        /// TLS, without verification.
        Require = "require",
        /// TLS, with a certificate of a trusted authority.
        VerifyCa = "verify-ca",
        /// TLS, with a certificate of a trusted authority for this host.
        VerifyFull = "verify-full",
    }
}

/// As in libpq, each host has an address and a port, or none has an address, or all have the same port.
fn unequal_numbers(config: &Config) -> Option<Problem> {
    let (hosts, addresses) = (config.get_hosts().len(), config.get_hostaddrs().len());
    let (servers, ports) = (hosts.max(addresses), config.get_ports());
    if hosts > 0 && addresses > 0 && hosts != addresses {
        let message = format!("[postgres] url has {hosts} in host, but {addresses} in hostaddr");
        return Some(Problem::new(message, "set an address for each host, or remove hostaddr"));
    }
    if ports.len() != servers && ports.iter().any(|port| Some(port) != ports.first()) {
        let message = format!("[postgres] url has {servers} in host, but {} ports", ports.len());
        let help = "set one port, or one for each host; in a URL, write it after the host";
        return Some(Problem::new(message, help));
    }
    None
}

choice! {
    /// How a server authenticates the relay: libpq's words in `require_auth`.
    AuthMethod {
        /// The password in clear text.
        Password = "password",
        /// An MD5 hash of the password.
        Md5 = "md5",
        /// SCRAM, which does not reveal the password.
        ScramSha256 = "scram-sha-256",
        /// Nothing, or the certificate of the client.
        None = "none",
    }
}

/// The methods that a server may use, and the user that must run it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Authentication {
    pub methods: Vec<AuthMethod>,
    /// `require_auth` does not name the methods.
    pub(crate) is_default: bool,
    /// For Unix sockets: the name or number of the user of the server.
    pub peer: Option<String>,
}

impl Authentication {
    /// Without `require_auth`, a server that is not verified gets no password.
    fn resolve(&mut self, mode: TlsMode) {
        if self.methods.is_empty() {
            self.is_default = true;
            self.methods = AuthMethod::ALL.into();
            if mode < TlsMode::VerifyCa {
                *self = std::mem::take(self).unverified();
            }
        }
    }

    /// The same for a server that TLS does not verify.
    pub(crate) fn unverified(mut self) -> Authentication {
        let is_safe = |method: &AuthMethod| !matches!(method, AuthMethod::Password | AuthMethod::Md5);
        self.methods.retain(|method| !self.is_default || is_safe(method));
        self
    }
}

/// As in libpq, all words are excluded or none.
fn methods(text: &str) -> Option<Vec<AuthMethod>> {
    let words = || text.split(',').map(str::trim);
    let excluded: Option<Vec<_>> = words().map(|word| AuthMethod::named(word.strip_prefix('!')?)).collect();
    let Some(excluded) = excluded else {
        return words().map(AuthMethod::named).collect();
    };
    let rest: Vec<_> = AuthMethod::ALL.into_iter().filter(|method| !excluded.contains(method)).collect();
    (!rest.is_empty()).then_some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(text: &str, mode: TlsMode) -> Option<Vec<&'static str>> {
        let lookup = Lookup::default();
        let mut builder = ConnectionBuilder::new(&lookup, Config::new());
        builder.set("require_auth", text).ok()?;
        let mut authentication = builder.connection.authentication;
        authentication.resolve(mode);
        Some(authentication.methods.iter().map(|method| method.name()).collect())
    }

    #[test]
    fn an_at_sign_after_the_credentials_of_a_url_is_part_of_a_value() {
        for (url, host) in [
            ("postgres://db.example/app?user=a@b&password=p@s%26s", Host::Tcp("db.example".into())),
            ("postgres:///app?host=/run/pg&user=a@b&password=p@s%26s", Host::Unix("/run/pg".into())),
            ("postgres://a%40b:p%40s%26s@db.example/app", Host::Tcp("db.example".into())),
        ] {
            let config: Config = split(url).ok().unwrap().rest.parse().unwrap();
            assert_eq!((config.get_hosts(), config.get_user()), (&[host][..], Some("a@b")), "{url}");
            assert_eq!(config.get_password(), Some("p@s&s".as_bytes()), "{url}");
            assert_eq!(config.get_dbname(), Some("app"), "{url}");
        }
        for url in ["db.example", "db.example:5433", "[::1]:5433", "[::1]", "a,b:5433", "a,[::1]:5433"] {
            let url = format!("postgres://{url}/a:b@c");
            let config: Config = split(&url).ok().unwrap().rest.parse().unwrap();
            assert_eq!((config.get_user(), config.get_dbname()), (None, Some("a:b@c")), "{url}");
        }
        let config: Config = split("postgres://relay:p/w@db.example/app").ok().unwrap().rest.parse().unwrap();
        assert_eq!((config.get_password(), config.get_dbname()), (Some("p/w".as_bytes()), Some("app")));
    }

    #[test]
    fn the_query_of_a_url_overrides_its_other_parts() {
        let config = |url: &str| split(url).ok().unwrap().rest.parse::<Config>().unwrap();
        let named = |names: &str| names.split(',').map(|name| Host::Tcp(name.to_owned())).collect::<Vec<_>>();
        let socket = config("postgres://u@localhost:5433/app?host=/cloudsql/p:r:i");
        assert_eq!(socket.get_hosts(), [Host::Unix("/cloudsql/p:r:i".into())]);
        assert_eq!((socket.get_ports(), socket.get_user()), (&[5433][..], Some("u")));
        let two = config("postgres:///app?host=a,b&port=1,2");
        assert_eq!((two.get_hosts(), two.get_ports()), (&named("a,b")[..], &[1, 2][..]));
        assert_eq!(config("host=a host=b").get_hosts(), named("b"));
        let both = config("postgresql://u:p%25%3A@a:5433,[::1]/d%20b?user=v&application_name=x'y");
        assert_eq!((both.get_hosts(), both.get_ports()), (&named("a,::1")[..], &[5433, 5432][..]));
        assert_eq!((both.get_user(), both.get_password()), (Some("v"), Some("p%:".as_bytes())));
        assert_eq!((both.get_dbname(), both.get_application_name()), (Some("d b"), Some("x'y")));
        assert!(split("postgres://u:50%off%21@h/d").is_err());
        assert!(split("postgres://[::1/app").is_err() && split("postgres://[::1]x/app").is_err());
    }

    /// For example, the socket of a server has no TLS.
    #[test]
    fn an_unverified_server_gets_no_password_unless_require_auth_allows_it() {
        let mut authentication = Authentication::default();
        authentication.resolve(TlsMode::VerifyFull);
        assert_eq!(authentication.methods.len(), 4);
        assert_eq!(authentication.unverified().methods, [AuthMethod::ScramSha256, AuthMethod::None]);
        let methods = vec![AuthMethod::Password];
        let mut named = Authentication { methods: methods.clone(), ..Authentication::default() };
        named.resolve(TlsMode::VerifyFull);
        assert_eq!(named.unverified().methods, methods);
    }

    #[test]
    fn unequal_numbers_of_hosts_addresses_and_ports_are_a_problem() {
        let problem =
            |text: &str| unequal_numbers(&split(text).ok().unwrap().rest.parse::<Config>().unwrap());
        for text in [
            "host=a,b",
            "host=a,b port=1",
            "host=a,b port=1,2",
            "hostaddr=127.0.0.1,127.0.0.2 port=1,2",
            "host=a,b hostaddr=127.0.0.1,127.0.0.2",
            "postgres://a,b:2/app",
            "postgres://a/app?port=5433",
            "postgres://a:1/app?port=2",
            "postgres://a:1/app?hostaddr=192.0.2.1",
        ] {
            assert!(problem(text).is_none(), "{text}");
        }
        for text in [
            "host=a,b hostaddr=127.0.0.1",
            "host=a hostaddr=127.0.0.1,127.0.0.2",
            "host=a,b,c port=1,2",
            "host=a port=1,2",
            "hostaddr=127.0.0.1 port=1,2",
            "postgres://a/app?port=2,3",
        ] {
            assert!(problem(text).is_some(), "{text}");
        }
    }

    #[test]
    fn primary_accepts_transactions_that_are_read_only_by_default() {
        for (value, expected) in [("any", false), ("read-write", false), ("primary", true)] {
            let lookup = Lookup::default();
            let mut builder = ConnectionBuilder::new(&lookup, Config::new());
            builder.set("target_session_attrs", value).ok().unwrap();
            assert_eq!(builder.resolve().0.accepts_read_only, expected, "{value}");
        }
    }

    #[test]
    fn methods_are_listed_or_excluded() {
        for (text, mode, expected) in [
            ("", TlsMode::Require, &["scram-sha-256", "none"][..]),
            ("", TlsMode::VerifyCa, &["password", "md5", "scram-sha-256", "none"]),
            ("md5, password", TlsMode::Prefer, &["md5", "password"]),
            ("scram-sha-256", TlsMode::VerifyFull, &["scram-sha-256"]),
            ("!password,!md5", TlsMode::VerifyFull, &["scram-sha-256", "none"]),
        ] {
            assert_eq!(allowed(text, mode).as_deref(), Some(expected), "{text}");
        }
        for text in
            ["gss", "!gss", "scram-sha-256,!md5", "!md5,none", ",", "!password,!md5,!scram-sha-256,!none"]
        {
            assert_eq!(allowed(text, TlsMode::Prefer), None, "{text}");
        }
    }
}
