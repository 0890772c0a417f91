use diesel::PgConnection;
use diesel::connection::{AnsiTransactionManager as Manager, TransactionManager};

use super::outside_transaction;
use crate::driver::OutboxTransaction;
use crate::idempotency::{BlockingPhaseConnection, PhaseError, Sealed};

impl Sealed for PgConnection {}

impl BlockingPhaseConnection for PgConnection {
    type Transaction<'c> = PgConnection;

    fn run_phase<T, E>(
        &mut self,
        work: impl FnOnce(&mut PgConnection) -> Result<T, PhaseError<E>>,
    ) -> Result<T, PhaseError<E>> {
        outside_transaction(self).map_err(PhaseError::Begin)?;
        Manager::begin_transaction(self).map_err(|error| PhaseError::Begin(error.into()))?;
        let result = work(self).inspect_err(|_| {
            // If this fails, diesel marks the connection as broken, and the first error is more useful.
            let _ = Manager::rollback_transaction(self);
        })?;
        Manager::commit_transaction(self).map_err(|error| PhaseError::Commit(error.into()))?;
        Ok(result)
    }

    fn in_phase(transaction: &mut Self::Transaction<'_>) -> impl OutboxTransaction {
        transaction
    }
}
