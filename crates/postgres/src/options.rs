//! `[postgres]`: the connection to the database.

mod conninfo;

use conninfo::ConnectionBuilder;
pub use conninfo::{AuthMethod, Authentication, Tls, TlsMode};
use settings::file::{Entries, Entry};
use settings::findings::Problem;
use settings::reader::{Raw, Reader, Value, is_loopback, words};
use settings::secret::{HIDDEN, Lookup, Secret, SecretSource};
use settings::setting::Fallback::{Default, Required, Unset};
use settings::setting::Kind::{Choice, Command, File, Flag, Span, Text};
use settings::setting::{Section, Setting};
use settings::{choice, section};
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;
use std::{fmt, io};
use tokio_postgres::config::Host;

/// PostgreSQL keeps 63 bytes. Commands add their own name.
const NAME_BYTES_MAX: usize = 48;
pub(crate) const CONNECT_TIMEOUT_MAX: Duration = Duration::from_secs(600);

section! {
    "postgres" Postgres,
        "The database that contains the outbox." {
        url / url_file(
            "postgres-url",
            "File that contains the url. Relative names, here and below, are looked up in $CREDENTIALS_DIRECTORY, \
             then in\nthe directory of the configuration file. The file is reloaded for each connection."
        ): SecretSource, Text, Required("postgres://outbox_relay@localhost/app"), Restart,
            "Connection string of the database: a URL, or keywords such as \"host=db user=outbox_relay dbname=app\".";
        password / password_file(
            "postgres-password",
            "File that contains the password. The file is reloaded for each connection."
        ): Option<SecretSource>, Text, Unset("secret"), NextConnection,
            "The password. It overrides the password in the url. If the environment sets another url, the password \
             in the\nconfiguration file is not used: set OUTBOX_RELAY__POSTGRES__PASSWORD as well.";
        password_command: Option<PasswordCommand>, Command, Unset("[\"aws\", \"rds\", \"generate-db-auth-token\", \"--hostname\", \"db\", \"--port\", \"5432\", \"--username\", \"outbox_relay\"]"), NextConnection,
            "Program, with its arguments, that prints the password. Use it instead of password or password_file. It \
             is \
             run before\neach connection, without a shell, and must finish within 10 s. Its standard output is \
             never logged.";
        sslmode: Option<TlsMode>, Choice(TlsMode::WORDS), Unset("verify-full"), NextConnection,
            "How strictly TLS is required and verified. This setting and the next three override the parameters of \
             the same\nname in the url, except in a url from the environment, which overrides the file. If sslmode is \
             set neither here\nnor in the url, it is verify-full, or prefer if every host is a loopback address or a \
             Unix socket.";
        sslrootcert: Option<String>, Text, Unset("ca.pem"), NextConnection,
            "File with the trusted certificate authorities. If unset or \"system\", the system's trust \
             store is used.\nverify-ca requires a file, \"system\" requires verify-full.";
        sslcert: Option<String>, File, Unset("client.pem"), NextConnection,
            "Client certificate, if the server requires one.";
        sslkey: Option<String>, File, Unset("client.key"), NextConnection,
            "Private key of the client certificate.";
        connect_timeout: Option<Duration>, Span(Duration::from_millis(100), CONNECT_TIMEOUT_MAX), Default("10s"), Restart,
            "Timeout for one attempt to connect to one address. For TLS and the login, the last or only address \
             gets the rest of\nfour times this time.";
        prepared_statements: bool, Flag, Default("true"), Restart,
            "Set to false behind a pooler in transaction mode that does not support prepared statements\n(PgBouncer \
             before 1.21, or with max_prepared_statements = 0).";
        application_name: Option<String>, Text, Default("outbox-relay"), Restart,
            "Name shown in pg_stat_activity.";
    } and {
        lookup: Lookup,
    }
}

choice! {
    /// What happens to a row that Kafka has acknowledged.
    OnSent {
        /// `sent_at` is set, and the reaper deletes the row later.
        Mark = "mark",
        Delete = "delete",
    }
}

/// Whether the setting is replaced by those that are given: a URL also replaces the password, which belongs to another role or
/// server, and what it says about TLS. A password replaces the command that prints it, and vice versa.
pub fn is_replaced(given: &Entries, section: &'static str, key: &str) -> bool {
    if section == Postgres::NAME
        && key.starts_with("ssl")
        && let Some(Entry { raw: Raw::Variable(url), .. }) = given.get(&Postgres::url)
    {
        return conninfo::split(url)
            .is_ok_and(|split| split.parameters.iter().any(|(known, _)| known == key));
    }
    let given = |key: &str| given.contains(section, key);
    let url = given("url") || given("url_file");
    let password = given("password") || given("password_file");
    let command = given("password_command");
    let is_command = key == "password_command";
    section == Postgres::NAME
        && key.starts_with("password")
        && (url || (is_command && password) || (!is_command && command))
}

#[derive(Clone, Debug, Default)]
pub struct Connection {
    /// For `tokio_postgres`, with the password. Its `ssl_mode` is not used.
    pub config: tokio_postgres::Config,
    pub tls: Tls,
    /// Which servers get the password.
    pub authentication: Authentication,
    /// Whether a primary is accepted whose transactions are read-only by default.
    pub accepts_read_only: bool,
}

impl Connection {
    /// Whether every host is a Unix socket or loopback. If a host has a name and an address, the relay uses the address.
    pub fn is_local(&self) -> bool {
        let local_host = |host: &Host| match host {
            Host::Unix(_) => true,
            Host::Tcp(name) => is_loopback(name),
        };
        match self.config.get_hostaddrs() {
            [] => self.config.get_hosts().iter().all(local_host),
            addresses => addresses.iter().all(IpAddr::is_loopback),
        }
    }
}

/// Why the settings cannot be used for a connection. At start these are findings. Later, a rotated file can cause them.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    #[error("cannot read {}", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("[postgres] url cannot be used: {0}")]
    Invalid(String),
}

impl Postgres {
    /// Reads the secrets, and returns the settings of a connection. Call it for each connection, so that rotated passwords and
    /// certificates are used.
    pub fn connection(&self) -> Result<Connection, ConnectionError> {
        let read_password = || self.password.as_ref().map(read).transpose();
        let (mut url, mut password) = (read(&self.url)?, read_password()?);
        // Both files may be replaced together. The new server must not get the old password.
        let latest = read(&self.url)?;
        if latest != url {
            (url, password) = (latest, read_password()?);
        }
        self.connect_to(&url, password.as_ref()).map_err(|problems| {
            let messages: Vec<_> = problems.into_iter().map(|problem| problem.message).collect();
            ConnectionError::Invalid(messages.join("; "))
        })
    }

    fn connect_to(&self, url: &Secret, password: Option<&Secret>) -> Result<Connection, Vec<Problem>> {
        let conninfo = conninfo::split(url.expose())?;
        // The message of the parser can quote the text.
        let mut config = conninfo.rest.parse::<tokio_postgres::Config>().map_err(|error| {
            let reason = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
            let message = match reason.strip_prefix("invalid value for option ") {
                Some(option) => format!("[postgres] url has an invalid value for {option}"),
                None => "[postgres] url cannot be parsed".to_owned(),
            };
            let help = "correct the url, and percent-encode special characters in the password";
            vec![Problem::new(message, help)]
        })?;
        let mut problems = Vec::new();
        if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
            let help = "for example postgres://user@host/database, or host=/run/postgresql for a socket";
            problems.push(Problem::new("[postgres] url has no host", help));
        }
        // The rest of a password with an unescaped `@`. Errors and DNS queries would show it.
        if config.get_hosts().iter().any(|host| matches!(host, Host::Tcp(name) if name.contains('@'))) {
            let help = "percent-encode special characters in the password, @ as %40";
            return Err(vec![Problem::new("[postgres] url has a host that contains @", help)]);
        }
        if let Some(password) = password {
            config.password(password.expose());
        }
        let mut builder = ConnectionBuilder::new(&self.lookup, config);
        // Settings override the URL.
        let keys = [("sslrootcert", &self.sslrootcert), ("sslcert", &self.sslcert), ("sslkey", &self.sslkey)];
        let keys = keys.into_iter().filter_map(|(key, value)| Some((key, value.as_deref()?)));
        let in_url = conninfo.parameters.iter().map(|(key, value)| (key.as_str(), value.as_str()));
        problems.extend(in_url.chain(keys).filter_map(|(key, value)| {
            let help = builder.set(key, value).err()?;
            Some(Problem::new(format!("connection parameter {key} has an invalid value"), help))
        }));
        builder.mode = self.sslmode.or(builder.mode);
        self.set_defaults(&mut builder.connection.config);
        let (connection, faults) = builder.resolve();
        problems.extend(faults);
        if problems.is_empty() { Ok(connection) } else { Err(problems) }
    }

    /// Sets timeouts that libpq leaves unlimited, so that the relay detects a dead server within about half a minute.
    fn set_defaults(&self, config: &mut tokio_postgres::Config) {
        let keepalive_default = tokio_postgres::Config::new().get_keepalives_idle();
        if config.get_keepalives_idle() == keepalive_default {
            config.keepalives_idle(Duration::from_secs(10));
        }
        if config.get_keepalives_interval().is_none() {
            config.keepalives_interval(Duration::from_secs(5));
        }
        if config.get_keepalives_retries().is_none_or(|retries| retries == 0) {
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

    /// Reads the section. `None` if there is no URL.
    pub fn from(reader: &mut Reader) -> Option<Postgres> {
        let mut postgres = Postgres { lookup: reader.lookup.clone(), ..Postgres::read(reader)? };
        // The file was just read. If it is no longer readable, the empty URL is a finding.
        let url = postgres.url.read().unwrap_or_else(|_| Secret::new(""));
        // Settings override the URL, and the URL overrides defaults.
        let in_url = |key: &str| {
            conninfo::split(url.expose())
                .is_ok_and(|split| split.parameters.iter().any(|(known, _)| known == key))
        };
        if reader.place(&Postgres::connect_timeout).is_none() && in_url("connect_timeout") {
            postgres.connect_timeout = None;
        }
        if reader.place(&Postgres::application_name).is_none() && in_url("application_name") {
            postgres.application_name = None;
        }
        let password = [&Postgres::password, &Postgres::password_file]
            .into_iter()
            .find(|key| reader.place(key).is_some());
        if let (Some(place), Some(password)) = (reader.place(&Postgres::password_command), password) {
            let message = format!("both password_command and {} are set in [postgres]", password.key);
            reader.findings.error(&place, Problem::new(message, "remove one of them"));
        }
        postgres.check(&url, reader);
        Some(postgres)
    }

    fn check(&self, url: &Secret, reader: &mut Reader) {
        let inline = reader.place(&Postgres::url);
        let place = inline.clone().or_else(|| reader.place(&Postgres::url_file));
        let place = place.unwrap_or_else(|| reader.default_place());
        let has_password = |connection: &Connection| connection.config.get_password().is_some();
        if let Some(inline) = inline
            && self.connect_to(url, None).is_ok_and(|connection| has_password(&connection))
        {
            reader.warn_if_inline("the password in [postgres] url", &inline);
        }
        let password = self.password.as_ref().and_then(|password| password.read().ok());
        let connection = match self.connect_to(url, password.as_ref()) {
            Ok(connection) => connection,
            Err(problems) => {
                let files = [&Postgres::sslrootcert, &Postgres::sslcert, &Postgres::sslkey];
                for problem in problems {
                    let about = |file: &&&Setting| problem.message.starts_with(&format!("{}: ", file.key));
                    let own = files.iter().find(about).and_then(|file| reader.place(file));
                    reader.findings.error(own.as_ref().unwrap_or(&place), problem);
                }
                return;
            }
        };
        let mode = connection.tls.mode;
        if !connection.is_local() && mode < TlsMode::VerifyFull {
            let risk = match mode {
                TlsMode::VerifyCa => {
                    "any server with a certificate of this authority can impersonate the server"
                }
                _ => "others can read the events or impersonate the server",
            };
            let message = format!("sslmode is {mode}, and a host is remote, so {risk}");
            let help = "set sslmode to verify-full, and set sslrootcert";
            reader.findings.warn(&place, Problem::new(message, help));
        }
        // The server cuts a longer name and replaces other characters, so `status` would not find the relay.
        let name = connection.config.get_application_name().unwrap_or_default();
        if name.len() > NAME_BYTES_MAX || !name.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic()) {
            let message = format!(
                "[postgres] application_name is {name:?}, but must have at most {NAME_BYTES_MAX} characters, all of them printable ASCII"
            );
            let help = "PostgreSQL would change it, and status would not find the relay";
            let place = reader.place(&Postgres::application_name).unwrap_or(place);
            reader.findings.error(&place, Problem::new(message, help));
        }
    }
}

fn read(source: &SecretSource) -> Result<Secret, ConnectionError> {
    source.read().map_err(|error| match source {
        SecretSource::File(path) => ConnectionError::Unreadable { path: path.clone(), source: error },
        SecretSource::Inline(_) => ConnectionError::Invalid(error.to_string()),
    })
}

/// A program that prints a password, and its arguments. They may contain a secret, so `Debug` hides them.
#[derive(Clone, PartialEq, Eq)]
pub struct PasswordCommand(Vec<String>);

impl PasswordCommand {
    /// The program, which is looked up in `PATH` unless it contains a slash.
    pub fn program(&self) -> &str {
        &self.0[0]
    }

    /// Its arguments. No shell interprets them.
    pub fn arguments(&self) -> &[String] {
        &self.0[1..]
    }

    /// `None` if the words do not begin with a program, or if one contains a NUL character, which the operating system cannot pass on.
    pub fn new(words: Vec<String>) -> Option<PasswordCommand> {
        let has_program = words.first().is_some_and(|program| !program.trim().is_empty());
        let can_be_passed = !words.iter().any(|word| word.contains('\0'));
        (has_program && can_be_passed).then_some(PasswordCommand(words))
    }
}

impl fmt::Debug for PasswordCommand {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("PasswordCommand(hidden)")
    }
}

impl Value for PasswordCommand {
    fn from_text(text: &str, setting: &Setting, _: &Reader) -> Result<PasswordCommand, Problem> {
        PasswordCommand::new(words(text).unwrap_or_default()).ok_or_else(|| {
            let (Default(example) | Unset(example) | Required(example)) = setting.fallback;
            let help = format!("for example {} = {example}. Remove it if you need no command", setting.key);
            Problem::new(format!("{setting} names no program"), help)
        })
    }

    fn shown(&self) -> Option<String> {
        Some(HIDDEN.to_owned())
    }
}
