use super::connection::outside_transaction;
use super::diesel_async::{AnsiTransactionManager, AsyncPgConnection, TransactionManager};
use crate::driver::OutboxTransaction;
use crate::error::PostgresError;
use crate::idempotency::transactional::{DieselConnection, Sealed};

impl Sealed for AsyncPgConnection {}

impl DieselConnection for AsyncPgConnection {
    async fn begin_phase(&mut self) -> Result<(), PostgresError> {
        outside_transaction(self)?;
        Ok(AnsiTransactionManager::begin_transaction(self).await?)
    }

    fn in_phase(&mut self) -> impl OutboxTransaction {
        self
    }

    async fn commit_phase(&mut self) -> Result<(), PostgresError> {
        Ok(AnsiTransactionManager::commit_transaction(self).await?)
    }

    async fn roll_back_phase(&mut self) -> Result<(), PostgresError> {
        Ok(AnsiTransactionManager::rollback_transaction(self).await?)
    }
}
