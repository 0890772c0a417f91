//! Errors of PostgreSQL: turns them into [`PostgresFault`]s with a remedy, and keeps only what may be printed. The table of SQLSTATEs is
//! [`sqlstates`].

use crate::connection::sqlstates;
use relay::failure::{FaultKind, PostgresFault};
use relay::reason::NO_ACTION;
use settings::certificates;
use std::borrow::Cow;
use std::error::Error;
use std::future::Future;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};
use tokio_postgres::error::SqlState;

/// The timeout of each statement of the relay, on the server.
pub(crate) const STATEMENT_TIMEOUT: Duration = Duration::from_secs(30);
/// The timeout for an answer of the server. It is longer than the server's own, so that the server reports the reason.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(35);

/// Waits for an answer of the server, for a limited time.
pub(crate) async fn answer<T>(
    doing: &'static str,
    request: impl Future<Output = Result<T, tokio_postgres::Error>>,
) -> Result<T, PostgresFault> {
    match tokio::time::timeout(ANSWER_TIMEOUT, request).await {
        Ok(answer) => answer.map_err(|error| fault(doing, error)),
        Err(_) => {
            let fix = "check the server and the network, and pg_locks for a session that holds a lock";
            Err(unavailable(doing, format!("no response within {ANSWER_TIMEOUT:?}. Fix: {fix}")))
        }
    }
}

/// When a table last changed under a prepared statement, in seconds since 1970; 0 if none has.
static TABLE_CHANGED: AtomicU64 = AtomicU64::new(0);

/// The text to prepare. A pooler such as PgBouncer keeps the statements of its own connections by their text, even if their
/// plans are stale and the client reconnects. A comment makes it prepare them again.
pub(crate) fn prepared_text(sql: &str) -> Cow<'_, str> {
    match TABLE_CHANGED.load(Ordering::Relaxed) {
        0 => Cow::Borrowed(sql),
        at => Cow::Owned(format!("{sql} /* {at} */")),
    }
}

/// A fault for a connection that cannot be opened or was lost.
pub fn unavailable(doing: &'static str, message: impl Into<String>) -> PostgresFault {
    PostgresFault { kind: FaultKind::Unavailable, doing, message: message.into() }
}

/// Classifies an error, adds the remedy, and drops everything that could contain a row.
pub fn fault(doing: &'static str, error: tokio_postgres::Error) -> PostgresFault {
    fault_at("", doing, error)
}

/// [`fault`], with the place of the error after its text.
pub(crate) fn fault_at(place: &str, doing: &'static str, error: tokio_postgres::Error) -> PostgresFault {
    // The server has no SQLSTATE of its own for a plan that a change of the table has made unusable.
    let is_stale = error.as_db_error().and_then(|error| error.routine()) == Some("RevalidateCachedQuery");
    let error = ServerError::from(error);
    let text = error.to_string();
    if is_stale {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        TABLE_CHANGED.store(since.as_secs(), Ordering::Relaxed);
    }
    let remedy = match error.code() {
        Some(code) if !text.contains(INTERCEPTED.0) => {
            sqlstates::entry(code.code()).map(|entry| entry.remedy.to_owned())
        }
        _ => connection_remedy(&text),
    };
    let message = message(error.code(), &format!("{text}{place}"), remedy);
    PostgresFault { kind: kind(error.code()), doing, message }
}

/// The text, what ended the transaction if a timeout of the server did, and the remedy if there is one.
fn message(code: Option<&SqlState>, text: &str, remedy: Option<String>) -> String {
    let mut message = text.to_owned();
    let timeout = match code.map(SqlState::code) {
        Some("25P03") => Some("idle_in_transaction_session_timeout"),
        Some("25P04") => Some("transaction_timeout"),
        _ => None,
    };
    if let Some(timeout) = timeout {
        message += &format!(". The server's {timeout} ended the transaction and any claim in it");
    }
    if let Some(remedy) = remedy.filter(|remedy| !remedy.starts_with(NO_ACTION)) {
        message += &format!(". Fix: {remedy}");
    }
    message
}

/// An error without a code means that the connection is lost. A code that is not listed counts as refused.
fn kind(code: Option<&SqlState>) -> FaultKind {
    let Some(code) = code else { return FaultKind::Unavailable };
    sqlstates::entry(code.code()).map_or(FaultKind::Refused, |entry| entry.kind)
}

/// An error of the server or the connection, without DETAIL, HINT and CONTEXT, which can contain a row.
///
/// It has no source, so that printing the chain of causes cannot show them either.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}{}", .code.as_ref().map(|code| format!(" (SQLSTATE {})", code.code())).unwrap_or_default())]
pub struct ServerError {
    code: Option<SqlState>,
    message: String,
}

impl ServerError {
    /// The SQLSTATE; `None` if the server did not answer.
    pub fn code(&self) -> Option<&SqlState> {
        self.code.as_ref()
    }

    /// Whether the connection failed, or the server ended it.
    pub fn is_connection_lost(&self) -> bool {
        self.code().is_none_or(|code| ["08", "57P"].iter().any(|start| code.code().starts_with(start)))
    }
}

impl From<tokio_postgres::Error> for ServerError {
    fn from(error: tokio_postgres::Error) -> Self {
        if let Some(answer) = error.as_db_error() {
            return Self { code: Some(answer.code().clone()), message: answer.message().to_owned() };
        }
        let message = match error.source() {
            // The client library would say that TLS or the communication has failed.
            Some(cause) if is_ours(cause) => cause.to_string(),
            Some(cause) => format!("{error}: {cause}"),
            None => error.to_string(),
        };
        Self { code: None, message }
    }
}

/// Why a connection was not opened, or not used. It contains no secret.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Refused(pub(super) String);

fn is_ours(cause: &(dyn Error + 'static)) -> bool {
    cause.is::<Refused>()
        || matches!(cause.downcast_ref().and_then(io::Error::get_ref), Some(within) if within.is::<Refused>())
}

/// Parts of error messages of the client library, each with a remedy: an imperative without a full stop.
const REMEDIES: &[(&str, &str)] = &[
    (
        "server does not support TLS",
        "set ssl = on in postgresql.conf or, on a private network, sslmode = \"disable\"",
    ),
    (
        "channel binding",
        "store the password as scram-sha-256 (password_encryption) and terminate TLS at the server, not at a pooler \
         or proxy; or remove channel_binding",
    ),
    (
        "error communicating with the server: Connection reset by peer",
        "check that the server is running, and read its log. If the server requires a client certificate, it may have \
         rejected the relay's certificate",
    ),
    (
        "Connection refused",
        "check the host and the port in [postgres] url, and whether the server is running",
    ),
    ("failed to lookup address information", "check the host in [postgres] url, and DNS"),
    ("no response within", "check that PostgreSQL is listening there and is not overloaded"),
    ("connection timed out", "check the host and the port in [postgres] url, and firewalls"),
    (
        "password missing",
        "the server requires a password: set [postgres] password_file or, if the environment sets the url, \
         OUTBOX_RELAY__POSTGRES__PASSWORD",
    ),
    ("unsupported authentication method", "use scram-sha-256 or cert in pg_hba.conf"),
    (
        "may be used",
        "store the password as scram-sha-256 (password_encryption, and the method in pg_hba.conf), or set \
         sslmode=verify-full. If you trust the process that listens there, add the method to require_auth in the url",
    ),
    ("requirepeer is", "find out which process listens on the socket, or correct requirepeer in the url"),
    (
        "does not allow writes",
        "check that the url lists the primary. If its transactions are read-only by default, set \
         target_session_attrs=primary",
    ),
];

/// The server's message if the relay received a certificate other than the server's, because something else terminates TLS.
const INTERCEPTED: (&str, &str) = (
    "channel binding check failed",
    "check whether a pooler, proxy or attacker terminates TLS between the relay and the server. If this is intended, set \
     channel_binding=disable in the url",
);

/// The remedy for a connection that was not opened, if one is known.
fn connection_remedy(error: &str) -> Option<String> {
    // The answer of a server says more than the silence of another one.
    let state = error.split_once("(SQLSTATE ").and_then(|(_, rest)| sqlstates::entry(rest.get(..5)?));
    let own = || REMEDIES.iter().find(|(words, _)| error.contains(words)).map(|(_, remedy)| *remedy);
    let intercepted = error.contains(INTERCEPTED.0).then_some(INTERCEPTED.1);
    if let Some(remedy) = intercepted.or(state.map(|entry| entry.remedy)).or_else(own) {
        return Some(remedy.to_owned());
    }
    let remedy = certificates::remedy(error)?;
    Some(format!(
        "{remedy} (sslrootcert, sslcert, sslkey). Files are reloaded at each attempt, systemd credentials only at a restart"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sqlstates_have_the_expected_kind() {
        let kind = |code: &str| kind(Some(&SqlState::from_code(code)));
        for code in ["08006", "25006", "53300", "0A000", "26000", "25P03", "57P01", "57P03", "28P01"] {
            assert_eq!(kind(code), FaultKind::Unavailable, "{code}");
        }
        for code in ["55P03", "40P01", "40001"] {
            assert_eq!(kind(code), FaultKind::Contended, "{code}");
        }
        for code in ["42501", "53100", "58030", "ZZZZZ"] {
            assert_eq!(kind(code), FaultKind::Refused, "{code}");
        }
        for code in ["22021", "54000", "XX000", "XX001"] {
            assert_eq!(kind(code), FaultKind::Data, "{code}");
        }
        assert_eq!(kind("57014"), FaultKind::TimedOut);
        assert_eq!(super::kind(None), FaultKind::Unavailable);
    }

    #[test]
    fn connection_that_the_server_ended_is_lost() {
        let is_lost = |code| ServerError { code, message: String::new() }.is_connection_lost();
        assert!(is_lost(None));
        for (code, expected) in [("08006", true), ("57P01", true), ("57014", false), ("0A000", false)] {
            assert_eq!(is_lost(Some(SqlState::from_code(code))), expected, "{code}");
        }
    }

    #[test]
    fn the_remedy_for_another_host_precedes_that_for_a_standby() {
        let remedy = |error: &str| connection_remedy(error).unwrap();
        let standby = "database does not allow writes";
        assert!(remedy(standby).contains("target_session_attrs=primary"));
        let refused = "error connecting to server: Connection refused (os error 111)";
        assert_eq!(remedy(&format!("{standby}; another address: {refused}")), remedy(refused));
    }

    #[test]
    fn a_timeout_of_the_server_is_named_with_its_remedy() {
        let text = |state: &str| {
            let remedy = sqlstates::entry(state).map(|entry| entry.remedy.to_owned());
            message(Some(&SqlState::from_code(state)), "ended", remedy)
        };
        for (state, setting, remedy) in [
            ("25P03", "idle_in_transaction_session_timeout", ". Fix: check why the relay's host froze"),
            ("25P04", "transaction_timeout", ". Fix: check whether a pooler sets transaction_timeout"),
        ] {
            let text = text(state);
            let ended = format!("ended. The server's {setting} ended the transaction and any claim in it");
            assert!(text.starts_with(&ended) && text.contains(remedy), "{text}");
        }
        assert_eq!(text("57P01"), "ended");
        assert_eq!(message(None, "connection closed", None), "connection closed");
    }
}
