//! What is wrong on the side of Postgres, for `outbox-relay doctor`. Every transaction here is READ ONLY.

mod clock;
mod events;
mod indexes;
mod plan;
mod rights;
mod schema;
mod timeouts;
mod tls;
mod vacuum;

use crate::config::Config;
use crate::doctor::codes::{NOT_LOOKED_AT, POOLER, POOLER_PREPARED_STATEMENTS};
use crate::doctor::{Finding, TopicInUse};
use crate::postgres::connection::connect::Database;
use crate::postgres::connection::pooler;
use crate::postgres::connection::transaction::{Params, ShortTransaction};
use crate::postgres::schema::check::FaultKind as SchemaFaultKind;
use crate::postgres::table::TableName;
use crate::relay::failure::{Fault, FaultKind};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

/// What was found, and which topics Kafka is to be asked about.
#[derive(Debug, Default)]
pub(crate) struct Examined {
    /// In the order in which it was looked.
    pub findings: Vec<Finding>,
    /// Those of the rows that wait first, and of the latest ones.
    pub topics: Vec<TopicInUse>,
}

/// Who asks, and of which table.
struct Asked<'a> {
    config: &'a Config,
    database: &'a Database,
    transaction: ShortTransaction,
    table: &'a TableName,
    role: Role,
}

/// The role that the relay connects as.
struct Role {
    name: String,
    database: String,
    is_superuser: bool,
}

const ROLE: &str = "
SELECT current_user::text, current_database()::text, rolsuper
FROM pg_roles
WHERE rolname = current_user";

/// Looks at everything. Needs a database of two connections on which nothing is prepared. `record_bytes_max` is the
/// producer's largest record.
///
/// # Errors
///
/// Postgres cannot be reached, or not any more. What it refuses to tell is a finding.
pub(crate) async fn examine(
    config: &Config,
    database: &Database,
    record_bytes_max: usize,
) -> Result<Examined, Fault> {
    let mut examined = Examined::default();
    let table = &config.outbox.table;
    let transaction = ShortTransaction::reading(database.clone());
    let role = role(&transaction).await?;
    let asked = Asked { config, database, transaction, table, role };
    let found = &mut examined.findings;

    add(found, "the clock", clock::findings(&asked).await)?;
    add(found, "TLS", tls::findings(&asked).await)?;
    add(found, "the pooler", pooled(&asked).await)?;
    add(found, "timeouts", timeouts::findings(&asked).await)?;

    let schema = schema::read(&asked).await?;
    found.extend(schema.findings);
    // Of a table that is not there, or is another one, the rest would only repeat it.
    let has = |kind| schema.faults.contains(&kind);
    if has(SchemaFaultKind::Version) || has(SchemaFaultKind::Migration) || has(SchemaFaultKind::Relation) {
        return Ok(examined);
    }
    add(found, "rights", rights::findings(&asked).await)?;
    add(found, "indexes", indexes::findings(&asked, has(SchemaFaultKind::Index)).await)?;
    add(found, "autovacuum", vacuum::autovacuum(&asked).await)?;
    add(found, "what holds vacuum back", vacuum::holders(&asked).await)?;
    if !has(SchemaFaultKind::Column) {
        if !has(SchemaFaultKind::Index) {
            add(found, "the claim's plan", plan::findings(&asked, &schema.facts, record_bytes_max).await)?;
        }
        match events::examine(&asked, &schema.facts, record_bytes_max).await {
            Ok((findings, topics)) => {
                found.extend(findings);
                examined.topics = topics;
            }
            Err(fault) => add(found, "the events that wait", Err(fault))?,
        }
    }
    Ok(examined)
}

/// Takes what one look found. What the server refuses is a finding, too; without a server there are none.
fn add(found: &mut Vec<Finding>, what: &str, looked: Result<Vec<Finding>, Fault>) -> Result<(), Fault> {
    match looked {
        Ok(findings) => found.extend(findings),
        Err(fault) if fault.kind == FaultKind::Unavailable => return Err(fault),
        Err(fault) => found.push(NOT_LOOKED_AT.found(
            what,
            fault.to_string(),
            "fix the cause of the error, then run `outbox-relay doctor` again",
        )),
    }
    Ok(())
}

async fn role(transaction: &ShortTransaction) -> Result<Role, Fault> {
    let rows = transaction.query("reading the role", ROLE, &[]).await?;
    let Some(row) = rows.first() else { unreachable!("the connected role exists") };
    Ok(Role { name: row.get(0), database: row.get(1), is_superuser: row.get(2) })
}

impl Asked<'_> {
    async fn rows(&self, doing: &'static str, sql: &str, params: Params<'_>) -> Result<Vec<Row>, Fault> {
        self.transaction.query(doing, &self.table.render(sql), params).await
    }

    /// Of a statement about the outbox table, which it names as $1, and that gives one row.
    async fn of_table(&self, doing: &'static str, sql: &str) -> Result<Option<Row>, Fault> {
        let rows = self.rows(doing, sql, &[(&self.table.quoted(), Type::TEXT)]).await?;
        Ok(rows.into_iter().next())
    }
}

async fn pooled(asked: &Asked<'_>) -> Result<Vec<Finding>, Fault> {
    // There may be no second connection to be had. If the server is gone, the next question says so.
    let unanswered = |fault: Fault| Fault { kind: FaultKind::Refused, ..fault };
    if !pooler::is_in_transaction_mode(asked.database).await.map_err(unanswered)? {
        return Ok(Vec::new());
    }
    let timeout = humantime::format_duration(asked.config.relay.publish_timeout);
    let remedy = format!(
        "in PgBouncer's configuration, set idle_transaction_timeout, query_timeout and transaction_timeout to 0, or \
         to more than [relay] publish_timeout = {timeout}"
    );
    let problem = "transactions use different server connections";
    let mut findings = vec![POOLER.found("[postgres] url", problem, remedy)];
    if asked.config.postgres.prepared_statements
        && !pooler::keeps_prepared_statements(asked.database).await.map_err(unanswered)?
    {
        findings.push(POOLER_PREPARED_STATEMENTS.found(
            "[postgres] prepared_statements",
            "a prepared statement does not exist in the next transaction",
            "set [postgres] prepared_statements = false, or set max_prepared_statements in PgBouncer 1.21 or newer",
        ));
    }
    Ok(findings)
}
