//! Whether a pooler stands in between that gives each transaction another connection of the server.

use crate::postgres::connection::connect::Database;
use crate::postgres::connection::fault::{answer, fault};
use crate::relay::failure::Fault;
use deadpool_postgres::Object;
use std::time::Duration;
use tokio::time::timeout;
use tokio_postgres::Client;

const DOING: &str = "looking for a pooler";
/// A server that answers begins a transaction at once. A pooler without a free connection lets it wait.
const BEGINS_WITHIN: Duration = Duration::from_secs(3);

/// Begins a transaction on two connections at once, ends both, and looks whether the first one finds its server process
/// again: a pooler in transaction mode gives it the one that became free last, or first, so both orders are tried. Needs
/// two connections. A pooler in session mode is none to the relay, and is not found.
pub(crate) async fn stands_between(database: &Database) -> Result<bool, Fault> {
    let (one, other) = (database.get().await?, database.get().await?);
    let found = match timeout(BEGINS_WITHIN, moves(&one, &other)).await {
        Ok(Ok(moves)) => Ok(moves),
        Ok(Err(error)) => Err(fault(DOING, error)),
        // Both are connected, and one waits for the other.
        Err(_) => Ok(true),
    };
    if !matches!(found, Ok(false)) {
        // A transaction may be open, or an answer on its way.
        drop((Object::take(one), Object::take(other)));
    }
    found
}

async fn moves(one: &Client, other: &Client) -> Result<bool, tokio_postgres::Error> {
    for first_in in [true, false] {
        let backend = begin(one).await?;
        begin(other).await?;
        let (first, last) = if first_in { (one, other) } else { (other, one) };
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
    client.batch_execute("BEGIN ISOLATION LEVEL READ COMMITTED READ ONLY").await?;
    Ok(client.query_typed_one("SELECT pg_backend_pid()", &[]).await?.get(0))
}

/// Whether a statement that was prepared in one transaction is known in the next one, which has another connection of
/// the server: PgBouncer before 1.21 forgets it. Asked only where a pooler was found.
pub(crate) async fn keeps_prepared_statements(database: &Database) -> Result<bool, Fault> {
    let (one, other) = (database.get().await?, database.get().await?);
    let kept = answer(DOING, async { Ok(prepared_survives(&one, &other).await) }).await?;
    drop((Object::take(one), Object::take(other)));
    Ok(kept)
}

/// While the other connection keeps the server's connection on which the statement was prepared, it has to be known on
/// another one. An error of whatever kind means that it is not.
async fn prepared_survives(one: &Client, other: &Client) -> bool {
    let survives = async {
        let statement = one.prepare("SELECT 1").await?;
        begin(other).await?;
        one.batch_execute("BEGIN ISOLATION LEVEL READ COMMITTED READ ONLY").await?;
        one.query(&statement, &[]).await?;
        one.batch_execute("ROLLBACK").await?;
        other.batch_execute("ROLLBACK").await?;
        one.query(&statement, &[]).await.map(|_| ())
    };
    let survived: Result<(), tokio_postgres::Error> = survives.await;
    survived.is_ok()
}
