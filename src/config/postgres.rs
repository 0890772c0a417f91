//! `[postgres]`: how to reach the database.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use tokio_postgres::config::TargetSessionAttrs;

use super::conninfo;
use super::findings::{Place, Problem};
use super::reader::Reader;
use super::secret::{Lookup, Secret, SecretSource};
use super::tls::{Tls, TlsKeys, TlsMode, TlsVersion, is_local, needs_tls};

/// `[postgres]`: the database that holds the outbox. [`Postgres::connection`] puts it together.
#[derive(Clone, Debug)]
pub struct Postgres {
    /// The URL, or libpq's `key=value` form.
    pub url: SecretSource,
    /// Comes before the password of the URL.
    pub password: Option<SecretSource>,
    /// How long one attempt to connect to one address may take; `None` leaves it to the URL.
    pub connect_timeout: Option<Duration>,
    /// Whether statements may be prepared; false behind poolers that cannot.
    pub prepared_statements: bool,
    /// The name in `pg_stat_activity`; `None` leaves it to the URL.
    pub application_name: Option<String>,
    /// What the keys of the file say about TLS; comes before the URL.
    pub(super) tls: TlsKeys,
    lookup: Lookup,
}

/// All that is needed for a connection.
#[derive(Clone, Debug)]
pub struct Connection {
    /// For `tokio_postgres`, with the password; its `ssl_mode` matches [`Connection::tls`].
    pub config: tokio_postgres::Config,
    /// For the TLS connector.
    pub tls: Tls,
}

impl Connection {
    /// Whether every host is a socket or loopback, so that nothing goes over a network.
    pub fn is_local(&self) -> bool {
        is_local(&self.config)
    }
}

/// Why the settings do not make a connection; at start these are findings, later a rotated file can cause them.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    /// The file of a secret cannot be read.
    #[error("{} cannot be read", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The URL, or what stands in its file now, cannot be used. Never quotes it.
    #[error("[postgres] url cannot be used: {0}")]
    Invalid(String),
}

impl Postgres {
    /// Reads the secrets as they are now, and puts the connection together. To be called at each connect, so that
    /// rotated passwords and certificates are taken up.
    ///
    /// # Errors
    ///
    /// When a secret's file cannot be read or no longer holds a usable URL.
    pub fn connection(&self) -> Result<Connection, ConnectionError> {
        let url = read(&self.url)?;
        let password = self.password.as_ref().map(read).transpose()?;
        self.connect_to(&url, password.as_ref()).map_err(|problems| {
            let messages: Vec<_> = problems.into_iter().map(|problem| problem.message).collect();
            ConnectionError::Invalid(messages.join("; "))
        })
    }

    /// These settings with the password of others, and with what their keys say about TLS.
    pub(super) fn with_secrets_of(&self, other: &Postgres) -> Postgres {
        Postgres { password: other.password.clone(), tls: other.tls.clone(), ..self.clone() }
    }

    fn connect_to(&self, url: &Secret, password: Option<&Secret>) -> Result<Connection, Vec<Problem>> {
        let conninfo = conninfo::split(url.expose())?;
        // The parser's own message can quote the text.
        let parsed = conninfo.rest.parse::<tokio_postgres::Config>().map_err(|error| {
            let reason = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
            let message = match reason.strip_prefix("invalid value for option ") {
                Some(option) => format!("[postgres] url has an invalid value for {option}"),
                None => "[postgres] url cannot be parsed".to_owned(),
            };
            vec![Problem::new(message, "percent-encode special characters of a password")]
        })?;
        let mut config = parsed;
        let mut problems = Vec::new();
        if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
            let help = "for instance postgres://user@host/database, or host=/run/postgresql for a socket";
            problems.push(Problem::new("[postgres] url names no host", help));
        }
        if let Some(password) = password {
            config.password(password.expose());
        }
        let mut keys = TlsKeys::default();
        for (key, value) in &conninfo.own {
            if let Err(problem) = own_parameter(key, value, &mut config, &mut keys) {
                problems.push(problem);
            }
        }
        self.settle(&mut config);
        let keys = self.tls.or(keys);
        let tls = keys.resolve(&config, &self.lookup);
        config.ssl_mode(tls.mode.negotiation());
        problems.extend(keys.check(&tls, &self.lookup));
        problems.extend(needs_tls(&config, tls.mode));
        if problems.is_empty() { Ok(Connection { config, tls }) } else { Err(problems) }
    }

    /// Sets what libpq leaves without a limit: a server that vanished is noticed within about half a minute.
    fn settle(&self, config: &mut tokio_postgres::Config) {
        let keepalive_default = tokio_postgres::Config::new().get_keepalives_idle();
        if config.get_keepalives_idle() == keepalive_default {
            config.keepalives_idle(Duration::from_secs(10));
        }
        if config.get_keepalives_interval().is_none() {
            config.keepalives_interval(Duration::from_secs(5));
        }
        if config.get_keepalives_retries().is_none() {
            config.keepalives_retries(3);
        }
        if config.get_tcp_user_timeout().is_none() {
            config.tcp_user_timeout(Duration::from_secs(30));
        }
        if let Some(timeout) = self.connect_timeout {
            config.connect_timeout(timeout);
        }
        if let Some(name) = &self.application_name {
            config.application_name(name);
        }
    }
}

impl Postgres {
    /// `None` when there is no URL.
    pub(super) fn from(reader: &mut Reader) -> Option<Postgres> {
        let url = reader.secret("postgres", "url");
        let password = reader.secret("postgres", "password");
        let mode = reader.text("postgres", "sslmode");
        let tls = TlsKeys {
            mode: mode.and_then(|mode| TlsMode::named(&mode)),
            root_cert: reader.text("postgres", "sslrootcert"),
            client_cert: reader.text("postgres", "sslcert"),
            client_key: reader.text("postgres", "sslkey"),
            ..TlsKeys::default()
        };
        let connect_timeout = reader.span("postgres", "connect_timeout");
        let prepared_statements = reader.flag("postgres", "prepared_statements");
        let application_name = reader.text("postgres", "application_name");
        let (source, url, place) = url?;
        // A default comes after the URL, a key comes before it.
        let written = |key| reader.place("postgres", key).is_some();
        let in_url = |key| conninfo::split(url.expose()).is_ok_and(|parts| parts.names(key));
        let postgres = Postgres {
            url: source,
            password: password.as_ref().map(|(source, ..)| source.clone()),
            connect_timeout: Some(connect_timeout)
                .filter(|_| written("connect_timeout") || !in_url("connect_timeout")),
            prepared_statements,
            application_name: application_name
                .filter(|_| written("application_name") || !in_url("application_name")),
            tls,
            lookup: reader.lookup.clone(),
        };
        postgres.note(&url, password.as_ref().map(|(_, secret, _)| secret), &place, reader);
        Some(postgres)
    }

    fn note(&self, url: &Secret, password: Option<&Secret>, place: &Place, reader: &mut Reader) {
        match self.connect_to(url, password) {
            Err(problems) => reader.findings.extend(place, problems),
            Ok(Connection { config, tls }) if !is_local(&config) && tls.mode < TlsMode::VerifyFull => {
                let message = format!(
                    "sslmode {} to a host that is not local: {}",
                    tls.mode.name(),
                    match tls.mode {
                        TlsMode::VerifyCa => "any server with a certificate of this authority can pose as it",
                        _ => "others can read the events, or pose as the server",
                    }
                );
                reader
                    .findings
                    .warn(place, Problem::new(message, "set sslmode to verify-full, and sslrootcert"));
            }
            Ok(_) => {}
        }
    }
}

fn own_parameter(
    key: &str,
    value: &str,
    config: &mut tokio_postgres::Config,
    tls: &mut TlsKeys,
) -> Result<(), Problem> {
    let invalid =
        |help: &str| Problem::new(format!("the connection parameter {key} has an invalid value"), help);
    let versions = || invalid("TLSv1.2 or TLSv1.3: older versions are broken");
    match key {
        "sslmode" if value == "allow" => {
            return Err(invalid(
                "allow means no TLS unless the server insists; choose prefer or verify-full",
            ));
        }
        "sslmode" => {
            let words = TlsMode::ALL.map(|(_, name)| name).join(", ");
            tls.mode = Some(TlsMode::named(value).ok_or_else(|| invalid(&format!("one of {words}")))?);
        }
        "sslrootcert" => tls.root_cert = Some(value.to_owned()),
        "sslcert" => tls.client_cert = Some(value.to_owned()),
        "sslkey" => tls.client_key = Some(value.to_owned()),
        "sslpassword" => tls.key_password = Some(Secret::new(value)),
        "sslcrl" => tls.crl = Some(value.to_owned()),
        "sslcrldir" => tls.crl_dir = Some(value.to_owned()),
        "sslsni" => match value {
            "0" => tls.hides_host = true,
            "1" => {}
            _ => return Err(invalid("1, or 0 to hide the name of the host")),
        },
        "ssl_min_protocol_version" => tls.version_min = Some(TlsVersion::named(value).ok_or_else(versions)?),
        "ssl_max_protocol_version" => tls.version_max = Some(TlsVersion::named(value).ok_or_else(versions)?),
        "connect_timeout" => {
            let seconds: i64 = value.parse().map_err(|_| invalid("a number of seconds"))?;
            if seconds > 0 {
                config.connect_timeout(Duration::from_secs(seconds.unsigned_abs()));
            }
        }
        // libpq counts milliseconds here, tokio_postgres seconds.
        "tcp_user_timeout" => {
            let milliseconds: i64 = value.parse().map_err(|_| invalid("a number of milliseconds"))?;
            if milliseconds > 0 {
                config.tcp_user_timeout(Duration::from_millis(milliseconds.unsigned_abs()));
            }
        }
        "target_session_attrs" => {
            config.target_session_attrs(match value {
                "any" => TargetSessionAttrs::Any,
                "read-write" | "primary" => TargetSessionAttrs::ReadWrite,
                _ => return Err(invalid("the relay writes: any or read-write")),
            });
        }
        _ => unreachable!("conninfo hands over only these"),
    }
    Ok(())
}

fn read(source: &SecretSource) -> Result<Secret, ConnectionError> {
    source.read().map_err(|error| match source {
        SecretSource::File(path) => ConnectionError::Unreadable { path: path.clone(), source: error },
        SecretSource::Inline(_) => unreachable!("an inline secret is not read from anywhere"),
    })
}
