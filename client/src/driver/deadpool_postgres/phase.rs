use deadpool_postgres::{Client, Transaction};

use crate::error::PostgresError;
use crate::idempotency::{PhaseConnection, Sealed};

impl Sealed for &mut Client {}

impl<'c> PhaseConnection for &'c mut Client {
    type Transaction = Transaction<'c>;
    type Tx<'t> = &'t Transaction<'t>;

    async fn begin_phase(self) -> Result<Transaction<'c>, PostgresError> {
        Ok(self.transaction().await?)
    }

    fn in_phase<'t>(transaction: &'t mut Transaction<'c>) -> &'t Transaction<'t> {
        transaction
    }

    async fn commit_phase(transaction: Transaction<'c>) -> Result<(), PostgresError> {
        Ok(transaction.commit().await?)
    }
}
