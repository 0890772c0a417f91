//! Splits a libpq connection string, so that no parameter in it is ignored.

use settings::file::nearest;
use settings::findings::Problem;

/// A connection string, split into what `tokio_postgres` reads and what the relay reads itself.
pub(super) struct Conninfo {
    /// For `tokio_postgres`: the same string without [`Conninfo::own`].
    pub(super) rest: String,
    /// The parameters that the relay handles itself, decoded, in order.
    pub(super) own: Vec<(String, String)>,
    names: Vec<String>,
}

impl Conninfo {
    /// Whether the string sets this parameter.
    pub(super) fn names(&self, key: &str) -> bool {
        self.names.iter().any(|name| name == key)
    }
}

/// The relay handles these, because `tokio_postgres` does not support them or differs from libpq.
const OWN: &[&str] = &[
    "sslmode",
    "sslrootcert",
    "sslcert",
    "sslkey",
    "sslpassword",
    "sslcrl",
    "sslcrldir",
    "sslsni",
    "ssl_min_protocol_version",
    "ssl_max_protocol_version",
    "tcp_user_timeout",
    "target_session_attrs",
    "connect_timeout",
    "require_auth",
    "requirepeer",
];

/// `tokio_postgres` handles these like libpq.
const PASSED: &[&str] = &[
    "user",
    "password",
    "dbname",
    "options",
    "application_name",
    "sslnegotiation",
    "host",
    "hostaddr",
    "port",
    "keepalives",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_count",
    "channel_binding",
    "load_balance_hosts",
];

/// Parameters with fixed behavior: the values that match it, and the help for other values.
const FIXED: &[(&str, &[&str], &str)] = &[
    ("client_encoding", &["UTF8", "utf8", "UTF-8", "utf-8"], "remove it: the relay always uses UTF8"),
    (
        "gssencmode",
        &["disable", "prefer"],
        "set sslmode=verify-full to encrypt: the relay does not support GSSAPI",
    ),
    ("gssdelegation", &["0"], "remove it: the relay does not support GSSAPI"),
    ("max_protocol_version", &["3.0", "3.2", "latest"], "remove it: the relay uses version 3.0"),
    ("min_protocol_version", &["3.0"], "remove it: the relay uses version 3.0"),
    ("replication", &["false", "off", "no", "0"], "remove it: the relay does not use replication"),
    (
        "sslcertmode",
        &["allow"],
        "remove it: the relay sends the client certificate if it is set and the server requests it",
    ),
    ("sslcompression", &["0"], "remove it: TLS compression is insecure and never used"),
];

/// Supported by libpq but not by the relay, with the alternative.
const UNSUPPORTED: &[(&str, &str)] = &[
    ("fallback_application_name", "set application_name, in the url or in [postgres]"),
    ("gsslib", NO_GSSAPI),
    ("krbsrvname", NO_GSSAPI),
    ("oauth_client_id", NO_OAUTH),
    ("oauth_client_secret", NO_OAUTH),
    ("oauth_issuer", NO_OAUTH),
    ("oauth_scope", NO_OAUTH),
    ("passfile", "write only the password to a file, and set [postgres] password_file"),
    ("requiressl", "set sslmode=verify-full and sslrootcert"),
    ("scram_client_key", "set [postgres] password_file"),
    ("scram_server_key", "set [postgres] password_file"),
    ("service", NO_SERVICE),
    ("servicefile", NO_SERVICE),
    ("ssl", "set sslmode=verify-full and sslrootcert"),
    ("sslkeylogfile", "remove it: anyone who can read that file can read the events"),
];

const NO_GSSAPI: &str = "use SCRAM or a client certificate: the relay does not support GSSAPI";
const NO_OAUTH: &str = "use SCRAM or a client certificate to authenticate with PostgreSQL";
const NO_SERVICE: &str = "add the parameters of the service to the url";

/// Splits a URL or a `key=value` string. Messages do not quote it, because it may contain a password.
pub(super) fn split(text: &str) -> Result<Conninfo, Vec<Problem>> {
    let url = ["postgres://", "postgresql://"].iter().find(|prefix| text.starts_with(**prefix));
    let (base, parameters) = match url {
        Some(prefix) => url_parameters(text, prefix.len()).map_err(|problem| vec![problem])?,
        None => (String::new(), key_values(text).map_err(|problem| vec![problem])?),
    };
    let (mut own, mut passed, mut names, mut problems) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (key, value) in parameters {
        names.push(key.clone());
        match handler(&key, &value) {
            Ok(Handler::Relay) => own.push((key, value)),
            Ok(Handler::TokioPostgres) if key == "keepalives_count" => {
                passed.push(("keepalives_retries".to_owned(), value));
            }
            Ok(Handler::TokioPostgres) => passed.push((key, value)),
            Ok(Handler::None) => {}
            Err(problem) => problems.push(problem),
        }
    }
    if !problems.is_empty() {
        return Err(problems);
    }
    let passed = passed.iter();
    let rest = if url.is_some() {
        let query: Vec<_> = passed.map(|(key, value)| format!("{key}={}", percent_encode(value))).collect();
        if query.is_empty() { base } else { format!("{base}?{}", query.join("&")) }
    } else {
        let quote = |value: &str| value.replace('\\', "\\\\").replace('\'', "\\'");
        passed.map(|(key, value)| format!("{key}='{}' ", quote(value))).collect()
    };
    Ok(Conninfo { rest, own, names })
}

/// The code that handles a parameter.
enum Handler {
    Relay,
    TokioPostgres,
    /// The value matches the fixed behavior.
    None,
}

/// The handler of a parameter, or a problem if the relay does not support it.
fn handler(key: &str, value: &str) -> Result<Handler, Problem> {
    if OWN.contains(&key) {
        return Ok(Handler::Relay);
    }
    if PASSED.contains(&key) {
        return Ok(Handler::TokioPostgres);
    }
    if let Some((_, values, help)) = FIXED.iter().find(|(known, ..)| *known == key) {
        if values.contains(&value) {
            return Ok(Handler::None);
        }
        let message = format!("connection parameter {key} can only be {}", values.join(" or "));
        return Err(Problem::new(message, *help));
    }
    if let Some((_, help)) = UNSUPPORTED.iter().find(|(known, _)| *known == key) {
        let message = format!("connection parameter {key} is not supported by the relay");
        return Err(Problem::new(message, *help));
    }
    // An unknown key may be part of a password, so it is quoted only if it is similar to a known one.
    Err(match nearest(key, OWN.iter().chain(PASSED).copied()) {
        Some(near) => {
            Problem::new(format!("unknown connection parameter {key}"), format!("did you mean {near}?"))
        }
        None => {
            let help =
                "remove it. If it is part of the password, percent-encode special characters in the password";
            Problem::new("unknown connection parameter", help)
        }
    })
}

/// Splits the query off a URL, and decodes it.
fn url_parameters(url: &str, prefix: usize) -> Result<(String, Vec<(String, String)>), Problem> {
    // As in libpq, credentials end at an @ before the first slash.
    let after = &url[prefix..];
    let credentials = after.find(['@', '/']).filter(|at| after[*at..].starts_with('@')).unwrap_or(0);
    let Some(question) = after[credentials..].find('?') else { return Ok((url.to_owned(), Vec::new())) };
    let (base, query) = url.split_at(prefix + credentials + question);
    let malformed = || Problem::new("the query of the url is malformed", "write ?key=value&key=value");
    let pair = |part: &str| {
        let (key, value) = part.split_once('=')?;
        Some((percent_decode(key)?, percent_decode(value)?))
    };
    let parts = query[1..].split('&').filter(|part| !part.is_empty());
    let parameters = parts.map(|part| pair(part).ok_or_else(malformed)).collect::<Result<_, _>>()?;
    Ok((base.to_owned(), parameters))
}

/// Splits `key=value key='value'`, with backslash escapes.
fn key_values(text: &str) -> Result<Vec<(String, String)>, Problem> {
    let malformed = || {
        let help = "for example \"postgres://user@host/database\" or \"host=db user=relay dbname=app\"";
        Problem::new("[postgres] url is neither a postgres:// URL nor a list of key=value", help)
    };
    let mut pairs = Vec::new();
    let mut characters = text.chars().peekable();
    while let Some(first) = characters.by_ref().find(|c| !c.is_whitespace()) {
        let mut key = String::from(first);
        key.extend(std::iter::from_fn(|| characters.next_if(|c| *c != '=' && !c.is_whitespace())));
        let sign = characters.by_ref().find(|c| !c.is_whitespace());
        if first == '=' || sign != Some('=') {
            return Err(malformed());
        }
        while characters.next_if(|c| c.is_whitespace()).is_some() {}
        let quoted = characters.next_if_eq(&'\'').is_some();
        let mut value = String::new();
        loop {
            match characters.next() {
                Some('\'') if quoted => break,
                Some(c) if !quoted && c.is_whitespace() => break,
                None if quoted => return Err(malformed()),
                None => break,
                Some('\\') => value.extend(characters.next()),
                Some(c) => value.push(c),
            }
        }
        pairs.push((key, value));
    }
    if pairs.is_empty() { Err(malformed()) } else { Ok(pairs) }
}

fn percent_decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
            bytes.push(u8::try_from(digit(rest.next())? * 16 + digit(rest.next())?).ok()?);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

fn percent_encode(text: &str) -> String {
    let keep = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/,:".contains(&byte);
    text.bytes()
        .map(|byte| if keep(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}
