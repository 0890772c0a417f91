//! Phases, each in its own transaction, for each driver.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::error::PhaseError;
use super::guard::Guard;
#[cfg(feature = "_diesel-async")]
use super::transactional::DieselConnection;
#[cfg(feature = "_sea-orm")]
use super::transactional::SeaOrmConnection;
#[cfg(feature = "_sqlx")]
use super::transactional::SqlxPool;
use crate::driver::OutboxTransaction;

impl Guard {
    /// Runs a phase in its own transaction, and commits it together with its result and the new recovery point. If an earlier
    /// attempt has committed the phase, this returns the stored result instead.
    ///
    /// ```no_run
    /// # use pg_outbox::idempotency::{Guard, PhaseError};
    /// # async fn example(guard: &mut Guard, client: &mut tokio_postgres::Client)
    /// # -> Result<(), PhaseError<tokio_postgres::Error>> {
    /// let payment: i64 = guard
    ///     .phase(client, "recorded", async |tx: &tokio_postgres::Transaction<'_>| {
    ///         let row = tx.query_one("INSERT INTO payment DEFAULT VALUES RETURNING id", &[]).await?;
    ///         Ok(row.get(0))
    ///     })
    ///     .await?;
    /// # let _ = payment; Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`PhaseError`]. After `Commit`, the outcome is unknown, so begin the request again.
    #[cfg(feature = "tokio-postgres")]
    pub async fn phase<T, E, F>(
        &mut self,
        client: &mut tokio_postgres::Client,
        phase: &str,
        work: F,
    ) -> Result<T, PhaseError<E>>
    where
        T: Serialize + DeserializeOwned,
        F: AsyncFnOnce(&tokio_postgres::Transaction<'_>) -> Result<T, E>,
    {
        if let Some(kept) = self.stored_result(phase) {
            return kept;
        }
        let tx = client.transaction().await.map_err(|error| PhaseError::Begin(error.into()))?;
        let result = work(&tx).await.map_err(PhaseError::Work)?;
        let data = self.record(&tx, phase, &result).await?;
        tx.commit().await.map_err(|error| PhaseError::Commit(error.into()))?;
        self.note_committed(phase, data);
        Ok(result)
    }

    /// [`Guard::phase`], for the synchronous driver postgres.
    ///
    /// ```no_run
    /// # use pg_outbox::idempotency::{Guard, PhaseError};
    /// # fn example(guard: &mut Guard, client: &mut postgres::Client) -> Result<(), PhaseError<postgres::Error>> {
    /// let payment: i64 = guard.phase_postgres(client, "recorded", |tx| {
    ///     let row = tx.query_one("INSERT INTO payment DEFAULT VALUES RETURNING id", &[])?;
    ///     Ok(row.get(0))
    /// })?;
    /// # let _ = payment; Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// See [`Guard::phase`].
    #[cfg(feature = "postgres")]
    pub fn phase_postgres<T, E, F>(
        &mut self,
        client: &mut postgres::Client,
        phase: &str,
        work: F,
    ) -> Result<T, PhaseError<E>>
    where
        T: Serialize + DeserializeOwned,
        F: FnOnce(&mut postgres::Transaction<'_>) -> Result<T, E>,
    {
        if let Some(kept) = self.stored_result(phase) {
            return kept;
        }
        let mut tx = client.transaction().map_err(|error| PhaseError::Begin(error.into()))?;
        let result = work(&mut tx).map_err(PhaseError::Work)?;
        let data = crate::block_on(self.record(&mut tx, phase, &result))?;
        tx.commit().map_err(|error| PhaseError::Commit(error.into()))?;
        self.note_committed(phase, data);
        Ok(result)
    }

    /// [`Guard::phase`], for each supported version of sqlx.
    ///
    /// ```no_run
    /// # #[cfg(feature = "sqlx-09")] mod example {
    /// # use pg_outbox::idempotency::{Guard, PhaseError};
    /// # async fn example(guard: &mut Guard, pool: &sqlx::PgPool) -> Result<(), PhaseError<sqlx::Error>> {
    /// let payment: i64 = guard
    ///     .phase_sqlx(pool, "recorded", async |tx: &mut sqlx::PgTransaction<'_>| {
    ///         sqlx::query_scalar("INSERT INTO payment DEFAULT VALUES RETURNING id").fetch_one(&mut **tx).await
    ///     })
    ///     .await?;
    /// # let _ = payment; Ok(()) }
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// See [`Guard::phase`].
    #[cfg(feature = "_sqlx")]
    pub async fn phase_sqlx<P, T, E, F>(&mut self, pool: &P, phase: &str, work: F) -> Result<T, PhaseError<E>>
    where
        P: SqlxPool,
        T: Serialize + DeserializeOwned,
        F: AsyncFnOnce(&mut P::Transaction) -> Result<T, E>,
    {
        if let Some(kept) = self.stored_result(phase) {
            return kept;
        }
        let mut tx = pool.begin_phase().await.map_err(PhaseError::Begin)?;
        let result = work(&mut tx).await.map_err(PhaseError::Work)?;
        let data = self.record(P::in_phase(&mut tx), phase, &result).await?;
        P::commit_phase(tx).await.map_err(PhaseError::Commit)?;
        self.note_committed(phase, data);
        Ok(result)
    }

    /// [`Guard::phase`], for each supported version of sea-orm.
    ///
    /// # Errors
    ///
    /// See [`Guard::phase`].
    #[cfg(feature = "_sea-orm")]
    pub async fn phase_sea_orm<C, T, E, F>(
        &mut self,
        connection: &C,
        phase: &str,
        work: F,
    ) -> Result<T, PhaseError<E>>
    where
        C: SeaOrmConnection,
        T: Serialize + DeserializeOwned,
        F: AsyncFnOnce(&C::Transaction) -> Result<T, E>,
    {
        if let Some(kept) = self.stored_result(phase) {
            return kept;
        }
        let tx = connection.begin_phase().await.map_err(PhaseError::Begin)?;
        let result = work(&tx).await.map_err(PhaseError::Work)?;
        let data = self.record(C::in_phase(&tx), phase, &result).await?;
        C::commit_phase(tx).await.map_err(PhaseError::Commit)?;
        self.note_committed(phase, data);
        Ok(result)
    }

    /// [`Guard::phase`], for each supported version of diesel-async. A connection with an open transaction causes
    /// [`PhaseError::Begin`], because the phase would only be a savepoint. If you drop the future, drop the connection too.
    ///
    /// # Errors
    ///
    /// See [`Guard::phase`].
    #[cfg(feature = "_diesel-async")]
    pub async fn phase_diesel<C, T, E, F>(
        &mut self,
        connection: &mut C,
        phase: &str,
        work: F,
    ) -> Result<T, PhaseError<E>>
    where
        C: DieselConnection,
        T: Serialize + DeserializeOwned,
        F: AsyncFnOnce(&mut C) -> Result<T, E>,
    {
        if let Some(kept) = self.stored_result(phase) {
            return kept;
        }
        connection.begin_phase().await.map_err(PhaseError::Begin)?;
        let done = match work(connection).await {
            Ok(result) => self.record(connection.in_phase(), phase, &result).await.map(|data| (result, data)),
            Err(error) => Err(PhaseError::Work(error)),
        };
        let (result, data) = match done {
            Ok(done) => done,
            Err(error) => {
                // If this fails, diesel marks the connection as broken, and the first error is more useful.
                let _ = connection.roll_back_phase().await;
                return Err(error);
            }
        };
        connection.commit_phase().await.map_err(PhaseError::Commit)?;
        self.note_committed(phase, data);
        Ok(result)
    }

    /// [`Guard::phase`], for the synchronous connection of diesel. A connection with an open transaction causes
    /// [`PhaseError::Begin`], because the phase would only be a savepoint.
    ///
    /// # Errors
    ///
    /// See [`Guard::phase`].
    #[cfg(feature = "diesel")]
    pub fn phase_diesel_blocking<T, E, F>(
        &mut self,
        connection: &mut diesel::PgConnection,
        phase: &str,
        work: F,
    ) -> Result<T, PhaseError<E>>
    where
        T: Serialize + DeserializeOwned,
        F: FnOnce(&mut diesel::PgConnection) -> Result<T, E>,
    {
        use diesel::connection::{AnsiTransactionManager as Manager, TransactionManager};

        if let Some(kept) = self.stored_result(phase) {
            return kept;
        }
        crate::driver::outside_blocking_transaction(connection).map_err(PhaseError::Begin)?;
        Manager::begin_transaction(connection).map_err(|error| PhaseError::Begin(error.into()))?;
        let done = work(connection).map_err(PhaseError::Work).and_then(|result| {
            let data = crate::block_on(self.record(&mut *connection, phase, &result))?;
            Ok((result, data))
        });
        let (result, data) = match done {
            Ok(done) => done,
            Err(error) => {
                // If this fails, diesel marks the connection as broken, and the first error is more useful.
                let _ = Manager::rollback_transaction(connection);
                return Err(error);
            }
        };
        Manager::commit_transaction(connection).map_err(|error| PhaseError::Commit(error.into()))?;
        self.note_committed(phase, data);
        Ok(result)
    }

    fn stored_result<T: DeserializeOwned, E>(&self, phase: &str) -> Option<Result<T, PhaseError<E>>> {
        let kept = self.phases.get(phase)?;
        Some(serde_json::from_value(kept.clone()).map_err(PhaseError::Data))
    }

    async fn record<E>(
        &self,
        transaction: impl OutboxTransaction,
        phase: &str,
        result: &impl Serialize,
    ) -> Result<Value, PhaseError<E>> {
        let data = serde_json::to_value(result).map_err(PhaseError::Data)?;
        self.reach(transaction, phase, &data).await?;
        Ok(data)
    }

    fn note_committed(&mut self, phase: &str, data: Value) {
        self.phases.insert(phase.to_owned(), data);
        self.recovery_point = Some(phase.to_owned());
    }
}
