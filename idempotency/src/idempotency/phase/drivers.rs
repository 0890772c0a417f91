//! The connections of the drivers. A macro contains what the versions of a driver have in common: everything but the crate.

#![allow(unused_imports, unused_macros)] // no single driver uses all of them

use pg_outbox::__private::drivers;
use pg_outbox::{OutboxClient, OutboxTransaction, PostgresError};

use super::connection::{BlockingPhaseConnection, PhaseConnection, Sealed};
use crate::idempotency::PhaseError;

/// tokio-postgres, and deadpool-postgres: a client lends its transaction.
macro_rules! client {
    ($driver:ident) => {
        impl Sealed for &mut drivers::$driver::Client {}

        impl<'c> PhaseConnection for &'c mut drivers::$driver::Client {
            type Transaction = drivers::$driver::Transaction<'c>;
            type Tx<'t> = &'t drivers::$driver::Transaction<'t>;

            async fn begin_phase(self) -> Result<Self::Transaction, PostgresError> {
                Ok(self.transaction().await?)
            }

            fn in_phase<'t>(transaction: &'t mut Self::Transaction) -> Self::Tx<'t> {
                transaction
            }

            async fn commit_phase(transaction: Self::Transaction) -> Result<(), PostgresError> {
                Ok(transaction.commit().await?)
            }
        }
    };
}

macro_rules! sqlx {
    ($sqlx:ident) => {
        impl Sealed for &drivers::$sqlx::PgPool {}

        impl PhaseConnection for &drivers::$sqlx::PgPool {
            type Transaction = drivers::$sqlx::PgTransaction<'static>;
            type Tx<'t> = &'t mut drivers::$sqlx::PgConnection;

            async fn begin_phase(self) -> Result<Self::Transaction, PostgresError> {
                Ok(self.begin().await?)
            }

            fn in_phase(transaction: &mut Self::Transaction) -> Self::Tx<'_> {
                transaction
            }

            async fn commit_phase(transaction: Self::Transaction) -> Result<(), PostgresError> {
                Ok(transaction.commit().await?)
            }
        }
    };
}

macro_rules! sea_orm {
    ($sea_orm:ident) => {
        impl Sealed for &drivers::$sea_orm::DatabaseConnection {}

        impl PhaseConnection for &drivers::$sea_orm::DatabaseConnection {
            type Transaction = drivers::$sea_orm::DatabaseTransaction;
            type Tx<'t> = &'t drivers::$sea_orm::DatabaseTransaction;

            async fn begin_phase(self) -> Result<Self::Transaction, PostgresError> {
                Ok(drivers::$sea_orm::TransactionTrait::begin(self).await?)
            }

            fn in_phase(transaction: &mut Self::Transaction) -> Self::Tx<'_> {
                transaction
            }

            async fn commit_phase(transaction: Self::Transaction) -> Result<(), PostgresError> {
                Ok(transaction.commit().await?)
            }
        }
    };
}

/// diesel has no type for a transaction, so the connection is the transaction.
macro_rules! diesel_async {
    ($diesel_async:ident) => {
        impl Sealed for &mut drivers::$diesel_async::AsyncPgConnection {}

        impl<'c> PhaseConnection for &'c mut drivers::$diesel_async::AsyncPgConnection {
            type Transaction = Self;
            type Tx<'t> = &'t mut drivers::$diesel_async::AsyncPgConnection;

            async fn begin_phase(self) -> Result<Self, PostgresError> {
                use drivers::$diesel_async::{AnsiTransactionManager, TransactionManager};
                OutboxClient::outside_transaction(&mut &mut *self)?;
                AnsiTransactionManager::begin_transaction(self).await?;
                Ok(self)
            }

            fn in_phase<'t>(transaction: &'t mut Self) -> Self::Tx<'t> {
                transaction
            }

            async fn commit_phase(transaction: Self) -> Result<(), PostgresError> {
                use drivers::$diesel_async::{AnsiTransactionManager, TransactionManager};
                Ok(AnsiTransactionManager::commit_transaction(transaction).await?)
            }

            async fn roll_back_phase(transaction: Self) {
                use drivers::$diesel_async::{AnsiTransactionManager, TransactionManager};
                // If this fails, diesel marks the connection as broken, and the first error is more useful.
                let _ = AnsiTransactionManager::rollback_transaction(transaction).await;
            }
        }
    };
}

#[cfg(feature = "tokio-postgres")]
client!(tokio_postgres);
#[cfg(feature = "deadpool-postgres")]
client!(deadpool_postgres);
#[cfg(feature = "sqlx-08")]
sqlx!(sqlx_08);
#[cfg(feature = "sqlx-09")]
sqlx!(sqlx_09);
#[cfg(feature = "sea-orm-1")]
sea_orm!(sea_orm_1);
#[cfg(feature = "sea-orm-2")]
sea_orm!(sea_orm_2);
#[cfg(feature = "diesel-async-07")]
diesel_async!(diesel_async_07);
#[cfg(feature = "diesel-async-08")]
diesel_async!(diesel_async_08);
#[cfg(feature = "diesel-async-09")]
diesel_async!(diesel_async_09);

#[cfg(feature = "postgres")]
mod postgres {
    use super::*;
    use drivers::postgres::{Client, Transaction};

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
}

#[cfg(feature = "diesel")]
mod diesel {
    use super::*;
    use drivers::diesel::PgConnection;
    use drivers::diesel::connection::{AnsiTransactionManager as Manager, TransactionManager};

    impl Sealed for PgConnection {}

    impl BlockingPhaseConnection for PgConnection {
        type Transaction<'c> = PgConnection;

        fn run_phase<T, E>(
            &mut self,
            work: impl FnOnce(&mut PgConnection) -> Result<T, PhaseError<E>>,
        ) -> Result<T, PhaseError<E>> {
            OutboxClient::outside_transaction(&mut &mut *self).map_err(PhaseError::Begin)?;
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
}
