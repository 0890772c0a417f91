use super::sqlx::{PgConnection, PgPool, PgTransaction};
use crate::error::PostgresError;
use crate::idempotency::{PhaseConnection, Sealed};

impl Sealed for &PgPool {}

impl PhaseConnection for &PgPool {
    type Transaction = PgTransaction<'static>;
    type Tx<'t> = &'t mut PgConnection;

    async fn begin_phase(self) -> Result<PgTransaction<'static>, PostgresError> {
        Ok(self.begin().await?)
    }

    fn in_phase<'t>(transaction: &'t mut PgTransaction<'static>) -> &'t mut PgConnection {
        transaction
    }

    async fn commit_phase(transaction: PgTransaction<'static>) -> Result<(), PostgresError> {
        Ok(transaction.commit().await?)
    }
}
