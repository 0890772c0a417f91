//! The scout's connection. Each query is one transaction and one round trip.

use crate::postgres::connection::connect::{Database, serial};
use crate::postgres::connection::fault::fault;
use crate::postgres::connection::transaction::{Params, ShortTransaction};
use crate::postgres::cycle::claim::reading::excepted;
use crate::postgres::cycle::statements::Statements;
use crate::relay::failure::Fault;
use crate::relay::lane::Lane;
use crate::relay::lanes::fence::Writer;
use crate::relay::lanes::marks::MarksSnapshot;
use crate::relay::lanes::scout::{Scan, ScoutQueries};
use crate::relay::lanes::watch::{Watch, Watched};
use crate::relay::outbox::ServerId;
use deadpool_postgres::Object;
use std::rc::Rc;
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

/// The scout's access to the outbox. It connects on first use.
pub struct PostgresScoutQueries {
    transaction: ShortTransaction,
    statements: Rc<Statements>,
    /// The quoted name of the table, whose locks identify the writers.
    table: String,
    connection: Option<Object>,
}

impl PostgresScoutQueries {
    /// For this outbox.
    pub fn new(database: Database, statements: Rc<Statements>, table: String) -> PostgresScoutQueries {
        // READ WRITE, although it only reads, so that a standby rejects it. On a demoted server, the scout would see neither
        // new rows nor writers.
        let transaction = ShortTransaction::writing(database);
        PostgresScoutQueries { transaction, statements, table, connection: None }
    }

    /// Runs a query. Also returns the serial number of the connection.
    async fn query(
        &mut self,
        doing: &'static str,
        sql: &str,
        params: Params<'_>,
    ) -> Result<(u64, Vec<Row>), Fault> {
        let connection = self.connected().await?;
        let serial = serial(&connection);
        let (connection, rows) = self.transaction.query_on(connection, doing, sql, params).await;
        self.connection = connection;
        Ok((serial, rows?))
    }

    async fn connected(&mut self) -> Result<Object, Fault> {
        match self.connection.take() {
            Some(connection) if !connection.is_closed() => Ok(connection),
            _ => self.transaction.connect().await,
        }
    }
}

impl ScoutQueries for PostgresScoutQueries {
    async fn scan(&mut self, lanes: &[Lane], marks: &MarksSnapshot) -> Result<Scan, Fault> {
        const DOING: &str = "scanning for events";
        let statements = Rc::clone(&self.statements);
        let numbers: Vec<i16> = lanes.iter().map(|lane| lane.number()).collect();
        let [xids, floor] = excepted(&marks.excepted);
        let params = [
            (&numbers as &(dyn ToSql + Sync), Type::INT2_ARRAY),
            (&marks.lows, Type::INT8_ARRAY),
            (&marks.basis, Type::INT8),
            xids,
            floor,
        ];
        let (connection, rows) = self.query(DOING, &statements.scan, &params).await?;
        scan(connection, &rows).map_err(|error| fault(DOING, error))
    }

    async fn writers(&mut self) -> Result<(ServerId, Vec<Writer>), Fault> {
        const DOING: &str = "listing open transactions that write to the outbox";
        let statements = Rc::clone(&self.statements);
        let table = self.table.clone();
        let (connection, rows) = self.query(DOING, &statements.writers, &[(&table, Type::TEXT)]).await?;
        let mut server = ServerId { connection, started_us: 0, backend: 0 };
        let mut writers = Vec::with_capacity(rows.len());
        for row in &rows {
            let read =
                || Ok((row.try_get(0)?, row.try_get(1)?, row.try_get::<_, Option<_>>(2)?, row.try_get(3)?));
            let (started_us, backend, name, xid) = read().map_err(|error| fault(DOING, error))?;
            server = ServerId { connection, started_us, backend };
            writers.extend(name.map(|name| Writer { name, xid }));
        }
        Ok((server, writers))
    }

    async fn watch(&mut self, watch: &Watch) -> Result<Watched, Fault> {
        const DOING: &str = "waiting for events";
        let statements = Rc::clone(&self.statements);
        let [first, every, at_most] =
            [watch.first, watch.every, watch.at_most].map(|duration| duration.as_secs_f64());
        let params: [(&(dyn ToSql + Sync), Type); 6] = [
            (&watch.highest, Type::INT8),
            (&watch.gaps, Type::INT8_ARRAY),
            (&watch.basis, Type::INT8),
            (&first, Type::FLOAT8),
            (&every, Type::FLOAT8),
            (&at_most, Type::FLOAT8),
        ];
        let connection = self.connected().await?;
        let (connection, rows) = self.transaction.call_on(connection, DOING, &statements.wait, &params).await;
        self.connection = connection;
        let rows = rows?;
        let Some(row) = rows.first() else { unreachable!("CALL returns the INOUT arguments") };
        let read = || Ok(Watched { highest: row.try_get(0)?, is_new: row.try_get(1)? });
        read().map_err(|error| fault(DOING, error))
    }
}

fn scan(connection: u64, rows: &[Row]) -> Result<Scan, tokio_postgres::Error> {
    let mut server = ServerId { connection, started_us: 0, backend: 0 };
    let mut basis = -1;
    let mut first_unsent = Vec::new();
    for row in rows {
        server = ServerId { connection, started_us: row.try_get(2)?, backend: row.try_get(3)? };
        basis = row.try_get(4)?;
        let lane: i16 = row.try_get(0)?;
        if let (Some(lane), Some(id)) = (Lane::new(lane.into()), row.try_get(1)?) {
            first_unsent.push((lane, id));
        }
    }
    Ok(Scan { server, basis, first_unsent })
}
