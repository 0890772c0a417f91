//! What an error of Postgres asks for. The table is [`crate::postgres::connection::sqlstates`].

use crate::postgres::connection::handshake;
use crate::postgres::connection::server_error::ServerError;
use crate::postgres::connection::sqlstates;
use crate::relay::failure::{Fault, FaultKind};
use std::future::Future;
use std::time::Duration;
use tokio_postgres::error::SqlState;

/// A statement of the relay takes no longer than this, by the server's clock.
pub const STATEMENT_TIMEOUT: Duration = Duration::from_secs(30);
/// The longest wait for an answer: longer than the server's own limit, so that it is the server that says why.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(35);

/// Waits for an answer of the server, and not for ever.
pub async fn answer<T>(
    doing: &'static str,
    asked: impl Future<Output = Result<T, tokio_postgres::Error>>,
) -> Result<T, Fault> {
    match tokio::time::timeout(ANSWER_TIMEOUT, asked).await {
        Ok(answer) => answer.map_err(|error| fault(doing, error)),
        Err(_) => Err(unavailable(doing, format!("no response within {ANSWER_TIMEOUT:?}"))),
    }
}

/// No connection, or none any more.
pub fn unavailable(doing: &'static str, message: impl Into<String>) -> Fault {
    Fault { kind: FaultKind::Unavailable, doing, message: message.into() }
}

/// Sorts an error, adds what a person can do about it, and drops what could show a row.
pub fn fault(doing: &'static str, error: tokio_postgres::Error) -> Fault {
    let error = ServerError::from(error);
    let text = error.to_string();
    let remedy = match error.code() {
        Some(code) => handshake::remedy_if_intercepted(&text)
            .or_else(|| sqlstates::entry(code.code()).map(|entry| entry.remedy.to_owned())),
        None => handshake::remedy(&text),
    };
    let message = match remedy.filter(|remedy| !remedy.starts_with("nothing")) {
        Some(remedy) => format!("{text}: {remedy}"),
        None => text,
    };
    Fault { kind: kind(error.code()), doing, message }
}

/// Without a code the connection is gone. A code that is not listed is the server's refusal.
fn kind(code: Option<&SqlState>) -> FaultKind {
    let Some(code) = code else { return FaultKind::Unavailable };
    sqlstates::entry(code.code()).map_or(FaultKind::Refused, |entry| entry.kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_decided_of_a_code_is_what_happens() {
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
