use super::connection::outside_transaction;
use super::diesel_async::{AnsiTransactionManager, AsyncPgConnection, TransactionManager};
use crate::error::PostgresError;
use crate::idempotency::{PhaseConnection, Sealed};

impl Sealed for &mut AsyncPgConnection {}

/// diesel has no type for a transaction, so the connection is the transaction.
impl<'c> PhaseConnection for &'c mut AsyncPgConnection {
    type Transaction = &'c mut AsyncPgConnection;
    type Tx<'t> = &'t mut AsyncPgConnection;

    async fn begin_phase(self) -> Result<&'c mut AsyncPgConnection, PostgresError> {
        outside_transaction(self)?;
        AnsiTransactionManager::begin_transaction(self).await?;
        Ok(self)
    }

    fn in_phase<'t>(transaction: &'t mut &'c mut AsyncPgConnection) -> &'t mut AsyncPgConnection {
        transaction
    }

    async fn commit_phase(transaction: &'c mut AsyncPgConnection) -> Result<(), PostgresError> {
        Ok(AnsiTransactionManager::commit_transaction(transaction).await?)
    }

    async fn roll_back_phase(transaction: &'c mut AsyncPgConnection) {
        // If this fails, diesel marks the connection as broken, and the first error is more useful.
        let _ = AnsiTransactionManager::rollback_transaction(transaction).await;
    }
}
