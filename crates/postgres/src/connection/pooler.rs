//! Detects a pooler in transaction mode, which gives each transaction another connection to the server.

use crate::connection::connect::Database;
use crate::connection::fault::{answer, fault};
use crate::connection::session;
use deadpool_postgres::Object;
use relay::failure::PostgresFault;
use std::time::Duration;
use tokio::time::timeout;
use tokio_postgres::Client;

const DOING: &str = "looking for a pooler";
/// A server begins a transaction at once. A pooler without a free connection makes it wait.
const BEGINS_WITHIN: Duration = Duration::from_secs(3);

/// Begins and ends transactions on two connections at once, then checks whether the first connection still has the same
/// server process. A pooler assigns the process that became free last, or first, so this tries both orders. A pooler in
/// session mode is not detected, because it makes no difference to the relay.
pub async fn is_in_transaction_mode(database: &Database) -> Result<bool, PostgresFault> {
    let (one, other) = (database.get().await?, database.get().await?);
    let found = match timeout(BEGINS_WITHIN, changes_backend(&one, &other)).await {
        Ok(Ok(changes)) => Ok(changes),
        Ok(Err(error)) => Err(fault(DOING, error)),
        // Both are connected, and one waits for the other.
        Err(_) => Ok(true),
    };
    if !matches!(found, Ok(false)) {
        // A transaction may be open, or an answer outstanding.
        drop((Object::take(one), Object::take(other)));
    }
    found
}

async fn changes_backend(one: &Client, other: &Client) -> Result<bool, tokio_postgres::Error> {
    for one_ends_first in [true, false] {
        let backend = begin(one).await?;
        begin(other).await?;
        let (first, last) = if one_ends_first { (one, other) } else { (other, one) };
        first.batch_execute("ROLLBACK").await?;
        last.batch_execute("ROLLBACK").await?;
        let again = begin(one).await?;
        one.batch_execute("ROLLBACK").await?;
        if again != backend {
            return Ok(true);
        }
    }
    Ok(false)
}

async fn begin(client: &Client) -> Result<i32, tokio_postgres::Error> {
    client.batch_execute(&session::begin("READ ONLY", "")).await?;
    Ok(client.query_typed_one("SELECT pg_backend_pid()", &[]).await?.get(0))
}

/// Whether a statement prepared in one transaction still exists in the next one, which has another connection to the server.
/// In PgBouncer before 1.21 it does not. Call it only if a pooler was detected.
pub(crate) async fn keeps_prepared_statements(database: &Database) -> Result<bool, PostgresFault> {
    let (one, other) = (database.get().await?, database.get().await?);
    let kept = answer(DOING, async { Ok(prepared_survives(&one, &other).await) }).await?;
    drop((Object::take(one), Object::take(other)));
    Ok(kept)
}

/// The other connection occupies the server process on which the statement was prepared. Any error means that the statement
/// does not exist elsewhere.
async fn prepared_survives(one: &Client, other: &Client) -> bool {
    let survives = async {
        begin(one).await?;
        let statement = one.prepare("SELECT 1").await?;
        one.batch_execute("ROLLBACK").await?;
        begin(other).await?;
        for is_other_busy in [true, false] {
            begin(one).await?;
            one.query(&statement, &[]).await?;
            one.batch_execute("ROLLBACK").await?;
            if is_other_busy {
                other.batch_execute("ROLLBACK").await?;
            }
        }
        Ok(())
    };
    let survived: Result<(), tokio_postgres::Error> = survives.await;
    survived.is_ok()
}
