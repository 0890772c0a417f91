//! Turns errors of PostgreSQL into [`PostgresFault`]s. The table of SQLSTATEs is [`crate::connection::sqlstates`].

use crate::connection::handshake;
use crate::connection::server_error::ServerError;
use crate::connection::sqlstates;
use crate::connection::transaction::note_changed_table;
use relay::failure::{FaultKind, PostgresFault};
use relay::reason::NO_ACTION;
use std::future::Future;
use std::time::Duration;
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
    let error = ServerError::from(error);
    let text = error.to_string();
    if error.code() == Some(&SqlState::FEATURE_NOT_SUPPORTED) {
        note_changed_table();
    }
    let remedy = match error.code() {
        Some(code) => handshake::remedy_if_intercepted(&text)
            .or_else(|| sqlstates::entry(code.code()).map(|entry| entry.remedy.to_owned())),
        None => handshake::remedy(&text),
    };
    let message = message(error.code(), &format!("{text}{place}"), remedy);
    PostgresFault { kind: kind(error.code()), doing, message }
}

/// The text, what ended the transaction if a timeout of the server did, and the remedy if there is one.
fn message(code: Option<&SqlState>, text: &str, remedy: Option<String>) -> String {
    let mut message = text.to_owned();
    if let Some(timeout) = code.and_then(|code| ended_by(code.code())) {
        message += &format!(". The server's {timeout} ended the transaction and any claim in it");
    }
    if let Some(remedy) = remedy.filter(|remedy| !remedy.starts_with(NO_ACTION)) {
        message += &format!(". Fix: {remedy}");
    }
    message
}

/// The server setting that ended the transaction.
fn ended_by(state: &str) -> Option<&'static str> {
    match state {
        "25P03" => Some("idle_in_transaction_session_timeout"),
        "25P04" => Some("transaction_timeout"),
        _ => None,
    }
}

/// An error without a code means that the connection is lost. A code that is not listed counts as refused.
fn kind(code: Option<&SqlState>) -> FaultKind {
    let Some(code) = code else { return FaultKind::Unavailable };
    sqlstates::entry(code.code()).map_or(FaultKind::Refused, |entry| entry.kind)
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
    fn a_timeout_of_the_server_is_named_with_its_remedy() {
        let text = |state: &str| {
            let remedy = sqlstates::entry(state).map(|entry| entry.remedy.to_owned());
            message(Some(&SqlState::from_code(state)), "ended", remedy)
        };
        for (state, setting, remedy) in [
            ("25P03", "idle_in_transaction_session_timeout", ". Fix: check why the relay's host froze"),
            ("25P04", "transaction_timeout", ". Fix: set transaction_timeout to 0"),
        ] {
            let text = text(state);
            let ended = format!("ended. The server's {setting} ended the transaction and any claim in it");
            assert!(text.starts_with(&ended) && text.contains(remedy), "{text}");
        }
        assert_eq!(text("57P01"), "ended");
        assert_eq!(message(None, "connection closed", None), "connection closed");
    }
}
