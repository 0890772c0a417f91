use super::sea_orm::{DatabaseConnection, DatabaseTransaction, TransactionTrait};
use crate::driver::OutboxTransaction;
use crate::error::PostgresError;
use crate::idempotency::transactional::{SeaOrmConnection, Sealed};

impl Sealed for DatabaseConnection {}

impl SeaOrmConnection for DatabaseConnection {
    type Transaction = DatabaseTransaction;

    async fn begin_phase(&self) -> Result<DatabaseTransaction, PostgresError> {
        Ok(self.begin().await?)
    }

    fn in_phase(transaction: &DatabaseTransaction) -> impl OutboxTransaction {
        transaction
    }

    async fn commit_phase(transaction: DatabaseTransaction) -> Result<(), PostgresError> {
        Ok(transaction.commit().await?)
    }
}
