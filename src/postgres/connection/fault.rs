//! Turns errors of PostgreSQL into [`Fault`]s. The table of SQLSTATEs is [`crate::postgres::connection::sqlstates`].

use crate::postgres::connection::handshake;
use crate::postgres::connection::server_error::ServerError;
use crate::postgres::connection::sqlstates;
use crate::relay::failure::{Fault, FaultKind};
use std::future::Future;
use std::time::Duration;
use tokio_postgres::error::SqlState;

/// The timeout of each statement of the relay, on the server.
pub(crate) const STATEMENT_TIMEOUT: Duration = Duration::from_secs(30);
/// The timeout for an answer of the server. It is longer than the server's own, so that the server reports the reason.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(35);

/// Waits for an answer of the server, for a limited time.
pub(crate) async fn answer<T>(
    doing: &'static str,
    request: impl Future<Output = Result<T, tokio_postgres::Error>>,
) -> Result<T, Fault> {
    match tokio::time::timeout(ANSWER_TIMEOUT, request).await {
        Ok(answer) => answer.map_err(|error| fault(doing, error)),
        Err(_) => {
            let fix = "check the server and the network, and pg_locks for a session that holds a lock";
            Err(unavailable(doing, format!("no response within {ANSWER_TIMEOUT:?}. Fix: {fix}")))
        }
    }
}

/// A fault for a connection that cannot be opened or was lost.
pub(crate) fn unavailable(doing: &'static str, message: impl Into<String>) -> Fault {
    Fault { kind: FaultKind::Unavailable, doing, message: message.into() }
}

/// Classifies an error, adds the remedy, and drops everything that could contain a row.
pub fn fault(doing: &'static str, error: tokio_postgres::Error) -> Fault {
    fault_at("", doing, error)
}

/// [`fault`], with the place of the error after its text.
pub(crate) fn fault_at(place: &str, doing: &'static str, error: tokio_postgres::Error) -> Fault {
    let error = ServerError::from(error);
    let text = error.to_string();
    let remedy = match error.code() {
        Some(code) => handshake::remedy_if_intercepted(&text)
            .or_else(|| sqlstates::entry(code.code()).map(|entry| entry.remedy.to_owned())),
        None => handshake::remedy(&text),
    };
    let message = match remedy.filter(|remedy| !remedy.starts_with("nothing")) {
        Some(remedy) => format!("{text}{place}. Fix: {remedy}"),
        None => format!("{text}{place}"),
    };
    Fault { kind: kind(error.code()), doing, message }
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
}
