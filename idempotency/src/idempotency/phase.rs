//! Phases, each in its own transaction.

mod connection;
mod drivers;

use pg_outbox::{OutboxTransaction, PostgresError};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::error::PhaseError;
use super::guard::Guard;

pub use connection::{BlockingPhaseConnection, PhaseConnection};

impl Guard {
    /// Runs a phase in its own transaction, and commits it together with its result and the new recovery point. If an earlier
    /// attempt has committed the phase, this returns the stored result instead.
    ///
    /// It works with every asynchronous driver. [`PhaseConnection`] lists what it takes, and what the work receives. With
    /// tokio-postgres, for example:
    ///
    /// ```no_run
    /// # #[cfg(feature = "tokio-postgres")] mod example {
    /// # use pg_idempotency::idempotency::{Guard, PhaseError};
    /// # async fn example(guard: &mut Guard, client: &mut tokio_postgres::Client)
    /// # -> Result<(), PhaseError<tokio_postgres::Error>> {
    /// let payment: i64 = guard
    ///     .phase(&mut *client, "recorded", async |tx| {
    ///         let row = tx.query_one("INSERT INTO payment DEFAULT VALUES RETURNING id", &[]).await?;
    ///         Ok(row.get(0))
    ///     })
    ///     .await?;
    /// # let _ = payment; Ok(()) }
    /// # }
    /// ```
    ///
    /// With sqlx, the work receives the connection of the transaction:
    ///
    /// ```no_run
    /// # #[cfg(feature = "sqlx-09")] mod example {
    /// # use pg_idempotency::idempotency::{Guard, PhaseError};
    /// # async fn example(guard: &mut Guard, pool: &sqlx::PgPool) -> Result<(), PhaseError<sqlx::Error>> {
    /// let payment: i64 = guard
    ///     .phase(pool, "recorded", async |tx| {
    ///         sqlx::query_scalar("INSERT INTO payment DEFAULT VALUES RETURNING id").fetch_one(tx).await
    ///     })
    ///     .await?;
    /// # let _ = payment; Ok(()) }
    /// # }
    /// ```
    ///
    /// With diesel-async, a connection with an open transaction causes [`PhaseError::Begin`], because the phase would only be a
    /// savepoint. If you drop the future, drop the connection too.
    ///
    /// # Errors
    ///
    /// [`PhaseError`]. After `Commit`, the outcome can be unknown: begin the request again. If it is unknown, and if the future
    /// was dropped during the COMMIT, the guard runs no further phase, because the phase may have been committed. The next call
    /// fails with [`PhaseError::Uncertain`].
    pub async fn phase<C, T, E, F>(&mut self, connection: C, phase: &str, work: F) -> Result<T, PhaseError<E>>
    where
        C: PhaseConnection,
        T: Serialize + DeserializeOwned,
        F: for<'t> AsyncFnOnce(C::Tx<'t>) -> Result<T, E>,
    {
        if let Some(kept) = self.stored_result(phase) {
            return kept;
        }
        if self.is_uncertain {
            return Err(PhaseError::Uncertain);
        }
        let mut transaction = connection.begin_phase().await.map_err(PhaseError::Begin)?;
        let done = match work(C::in_phase(&mut transaction)).await {
            Ok(result) => {
                let recorded = self.record(C::in_phase(&mut transaction), phase, &result).await;
                recorded.map(|data| (result, data))
            }
            Err(error) => Err(PhaseError::Work(error)),
        };
        match done {
            Ok((result, data)) => {
                // Set before the COMMIT, because the caller can drop this future while it runs.
                self.is_uncertain = true;
                let committed = C::commit_phase(transaction).await;
                self.is_uncertain = committed.as_ref().is_err_and(leaves_uncertain);
                committed.map_err(PhaseError::Commit)?;
                self.note_committed(phase, data);
                Ok(result)
            }
            Err(error) => {
                C::roll_back_phase(transaction).await;
                Err(error)
            }
        }
    }

    /// [`Guard::phase`], for the synchronous drivers: see [`BlockingPhaseConnection`]. With postgres, for example:
    ///
    /// ```no_run
    /// # #[cfg(feature = "postgres")] mod example {
    /// # use pg_idempotency::idempotency::{Guard, PhaseError};
    /// # fn example(guard: &mut Guard, client: &mut postgres::Client) -> Result<(), PhaseError<postgres::Error>> {
    /// let payment: i64 = guard.phase_blocking(client, "recorded", |tx| {
    ///     let row = tx.query_one("INSERT INTO payment DEFAULT VALUES RETURNING id", &[])?;
    ///     Ok(row.get(0))
    /// })?;
    /// # let _ = payment; Ok(()) }
    /// # }
    /// ```
    ///
    /// With diesel, a connection with an open transaction causes [`PhaseError::Begin`], because the phase would only be a
    /// savepoint.
    ///
    /// # Errors
    ///
    /// See [`Guard::phase`].
    pub fn phase_blocking<C, T, E, F>(
        &mut self,
        connection: &mut C,
        phase: &str,
        work: F,
    ) -> Result<T, PhaseError<E>>
    where
        C: BlockingPhaseConnection,
        T: Serialize + DeserializeOwned,
        F: FnOnce(&mut C::Transaction<'_>) -> Result<T, E>,
    {
        if let Some(kept) = self.stored_result(phase) {
            return kept;
        }
        if self.is_uncertain {
            return Err(PhaseError::Uncertain);
        }
        let done: Result<(T, Value), PhaseError<E>> = connection.run_phase(|transaction| {
            let result = work(transaction).map_err(PhaseError::Work)?;
            let data = pg_outbox::block_on(self.record(C::in_phase(transaction), phase, &result))?;
            Ok((result, data))
        });
        if let Err(PhaseError::Commit(error)) = &done {
            self.is_uncertain = leaves_uncertain(error);
        }
        let (result, data) = done?;
        self.note_committed(phase, data);
        Ok(result)
    }

    fn stored_result<T: DeserializeOwned, E>(&self, phase: &str) -> Option<Result<T, PhaseError<E>>> {
        let kept = self.phases.get(phase)?;
        Some(serde_json::from_value(kept.clone()).map_err(PhaseError::Data))
    }

    async fn record<T: Serialize + DeserializeOwned, E>(
        &self,
        transaction: impl OutboxTransaction,
        phase: &str,
        result: &T,
    ) -> Result<Value, PhaseError<E>> {
        let data = serde_json::to_value(result).map_err(PhaseError::Data)?;
        // Otherwise no later attempt could continue.
        T::deserialize(&data).map_err(PhaseError::Data)?;
        self.reach(transaction, phase, &data).await?;
        Ok(data)
    }

    fn note_committed(&mut self, phase: &str, data: Value) {
        self.phases.insert(phase.to_owned(), data);
        self.recovery_point = Some(phase.to_owned());
    }
}

/// Whether a COMMIT with this error may have taken effect. An SQLSTATE of another kind means that PostgreSQL has rolled back.
fn leaves_uncertain(error: &PostgresError) -> bool {
    matches!(error.sqlstate(), None | Some("40003")) || error.is_connection_lost()
}
