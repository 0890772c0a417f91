use super::sqlx::{PgPool, PgTransaction};
use crate::driver::OutboxTransaction;
use crate::error::PostgresError;
use crate::idempotency::transactional::{Sealed, SqlxPool};

impl Sealed for PgPool {}

impl SqlxPool for PgPool {
    type Transaction = PgTransaction<'static>;

    async fn begin_phase(&self) -> Result<PgTransaction<'static>, PostgresError> {
        Ok(self.begin().await?)
    }

    fn in_phase(transaction: &mut PgTransaction<'static>) -> impl OutboxTransaction {
        transaction
    }

    async fn commit_phase(transaction: PgTransaction<'static>) -> Result<(), PostgresError> {
        Ok(transaction.commit().await?)
    }
}
