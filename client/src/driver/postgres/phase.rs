use postgres::{Client, Transaction};

use crate::driver::OutboxTransaction;
use crate::idempotency::{BlockingPhaseConnection, PhaseError, Sealed};

impl Sealed for Client {}

impl BlockingPhaseConnection for Client {
    type Transaction<'c> = Transaction<'c>;

    fn run_phase<T, E>(
        &mut self,
        work: impl FnOnce(&mut Transaction<'_>) -> Result<T, PhaseError<E>>,
    ) -> Result<T, PhaseError<E>> {
        let mut transaction = self.transaction().map_err(|error| PhaseError::Begin(error.into()))?;
        let result = work(&mut transaction)?;
        transaction.commit().map_err(|error| PhaseError::Commit(error.into()))?;
        Ok(result)
    }

    fn in_phase(transaction: &mut Self::Transaction<'_>) -> impl OutboxTransaction {
        transaction
    }
}
