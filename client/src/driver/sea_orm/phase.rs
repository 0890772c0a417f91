use super::sea_orm::{DatabaseConnection, DatabaseTransaction, TransactionTrait};
use crate::error::PostgresError;
use crate::idempotency::{PhaseConnection, Sealed};

impl Sealed for &DatabaseConnection {}

impl PhaseConnection for &DatabaseConnection {
    type Transaction = DatabaseTransaction;
    type Tx<'t> = &'t DatabaseTransaction;

    async fn begin_phase(self) -> Result<DatabaseTransaction, PostgresError> {
        Ok(self.begin().await?)
    }

    fn in_phase(transaction: &mut DatabaseTransaction) -> &DatabaseTransaction {
        transaction
    }

    async fn commit_phase(transaction: DatabaseTransaction) -> Result<(), PostgresError> {
        Ok(transaction.commit().await?)
    }
}
