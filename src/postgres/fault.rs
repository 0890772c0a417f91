//! What an error of Postgres asks for.
//!
//! | SQLSTATE | kind | why |
//! |---|---|---|
//! | none, 08xxx, 57P0x | unavailable | the connection or the server is gone, or going |
//! | 25006 | unavailable | read-only: after a failover another host of the URL may be the primary |
//! | 0A000 | unavailable | how a standby refuses READ WRITE, and how a prepared plan ends after DDL |
//! | 26000, 25P03 | unavailable | a pooler forgot a prepared statement; the claim idled too long |
//! | 53300 | unavailable | too many connections |
//! | 55P03, 40P01, 40001 | contended | somebody else's lock |
//! | any other | refused | grants, schema, disk: somebody has to mend it |

use super::server_error::ServerError;
use crate::relay::failure::{Fault, FaultKind};
use std::future::Future;
use std::time::Duration;
use tokio_postgres::error::SqlState;

/// A statement of the relay takes no longer than this, by the server's clock.
pub const STATEMENT_TIMEOUT: Duration = Duration::from_secs(30);
/// The longest wait for an answer: longer than the server's own limit, so that it is the server that says why.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(35);

/// Waits for an answer of the server, and not for ever.
pub async fn answer<T>(
    doing: &'static str,
    asked: impl Future<Output = Result<T, tokio_postgres::Error>>,
) -> Result<T, Fault> {
    match tokio::time::timeout(ANSWER_TIMEOUT, asked).await {
        Ok(answer) => answer.map_err(|error| fault(doing, error)),
        Err(_) => Err(unavailable(doing, format!("no answer within {ANSWER_TIMEOUT:?}"))),
    }
}

/// No connection, or none any more.
pub fn unavailable(doing: &'static str, message: impl Into<String>) -> Fault {
    Fault { kind: FaultKind::Unavailable, doing, message: message.into() }
}

/// Sorts an error, and drops what could show a row.
pub fn fault(doing: &'static str, error: tokio_postgres::Error) -> Fault {
    let error = ServerError::from(error);
    Fault { kind: kind(error.code()), doing, message: error.to_string() }
}

fn kind(code: Option<&SqlState>) -> FaultKind {
    let Some(code) = code else { return FaultKind::Unavailable };
    match code.code() {
        "25006" | "53300" | "0A000" | "26000" | "25P03" => FaultKind::Unavailable,
        "55P03" | "40P01" | "40001" => FaultKind::Contended,
        other if other.starts_with("08") || other.starts_with("57P") => FaultKind::Unavailable,
        _ => FaultKind::Refused,
    }
}
