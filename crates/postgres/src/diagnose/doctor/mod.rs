//! The database checks of `outbox-relay doctor`. Every transaction is READ ONLY.

mod clock;
mod events;
mod indexes;
mod plan;
mod privileges;
mod schema;
mod timeouts;
mod tls;
mod topic_template;
mod triggers;
mod vacuum;

use crate::connection::connect::Database;
use crate::connection::pooler;
use crate::connection::transaction::{Params, ShortTransaction};
use crate::options::{OnSent, Postgres};
use crate::schema::check::SchemaFaultKind;
use crate::table::TableName;
use relay::failure::{FaultKind, PostgresFault};
use relay::topic::TopicRules;
use settings::doctor::codes::{CHECK_SKIPPED, POOLER, POOLER_PREPARED_STATEMENTS};
use settings::doctor::{Finding, TopicInUse};
use std::time::Duration;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

/// The findings, and the topics to check in Kafka.
#[derive(Debug, Default)]
pub struct Examined {
    /// In the order of the checks.
    pub findings: Vec<Finding>,
    /// The topics of the first unsent rows and of the latest rows.
    pub topics: Vec<TopicInUse>,
}

/// The settings that the checks depend on.
pub struct Settings<'a> {
    /// `[postgres]`.
    pub postgres: &'a Postgres,
    /// The outbox.
    pub table: &'a TableName,
    /// The configured topics.
    pub topics: TopicRules,
    /// What happens to a row that was sent.
    pub on_sent: OnSent,
    /// The names of headers that a row cannot set.
    pub reserved_headers: Vec<String>,
    /// The rows of a batch.
    pub batch_rows: usize,
    /// How long a claim may wait for Kafka.
    pub publish_timeout: Duration,
    /// The size of the producer's largest record.
    pub record_bytes_max: usize,
}

/// What the checks need.
struct Context<'a> {
    settings: &'a Settings<'a>,
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

/// Runs all checks. The pool needs two connections, without prepared statements.
///
/// # Errors
///
/// If the server is unavailable. A query that the server refuses is a finding.
pub async fn examine(settings: &Settings<'_>, database: &Database) -> Result<Examined, PostgresFault> {
    let mut examined = Examined::default();
    let (table, record_bytes_max) = (settings.table, settings.record_bytes_max);
    let transaction = ShortTransaction::reading(database.clone());
    let role = role(&transaction).await?;
    let context = Context { settings, database, transaction, table, role };
    let found = &mut examined.findings;

    add(found, "the clock", clock::findings(&context).await)?;
    add(found, "TLS", tls::findings(&context).await)?;
    add(found, "the pooler", pooled(&context).await)?;
    add(found, "timeouts", timeouts::findings(&context).await)?;

    let schema = schema::read(&context).await?;
    found.extend(schema.findings.iter().cloned());
    // Without the right table, the other checks would only repeat these findings.
    let has = |kind| schema.faults.contains(&kind);
    if has(SchemaFaultKind::Version) || has(SchemaFaultKind::Migration) || has(SchemaFaultKind::Relation) {
        return Ok(examined);
    }
    add(found, "rights", privileges::findings(&context).await)?;
    add(found, "the recorded topic template", topic_template::findings(&context).await)?;
    add(found, "indexes", indexes::findings(&context, has(SchemaFaultKind::Index)).await)?;
    add(found, "triggers", triggers::findings(&context).await)?;
    add(found, "constraints", triggers::constraints(&context).await)?;
    add(found, "autovacuum", vacuum::autovacuum(&context).await)?;
    add(found, "what holds vacuum back", vacuum::holders(&context).await)?;
    if !has(SchemaFaultKind::Column) {
        if !has(SchemaFaultKind::Index) {
            add(found, "the claim's plan", plan::findings(&context, &schema, record_bytes_max).await)?;
        }
        match events::examine(&context, &schema, record_bytes_max).await {
            Ok((findings, topics)) => {
                found.extend(findings);
                examined.topics = topics;
            }
            Err(fault) => add(found, "the events that wait", Err(fault))?,
        }
    }
    Ok(examined)
}

/// Adds the findings of one check. A fault is a finding too, unless the server is unavailable.
fn add(
    found: &mut Vec<Finding>,
    what: &str,
    checked: Result<Vec<Finding>, PostgresFault>,
) -> Result<(), PostgresFault> {
    match checked {
        Ok(findings) => found.extend(findings),
        Err(fault) if fault.kind == FaultKind::Unavailable => return Err(fault),
        Err(fault) => found.push(CHECK_SKIPPED.found(
            what,
            fault.to_string(),
            "fix the cause of the error, then run `outbox-relay doctor` again",
        )),
    }
    Ok(())
}

async fn role(transaction: &ShortTransaction) -> Result<Role, PostgresFault> {
    let rows = transaction.query("reading the role", ROLE, &[]).await?;
    let Some(row) = rows.first() else { unreachable!("the connected role exists") };
    Ok(Role { name: row.get(0), database: row.get(1), is_superuser: row.get(2) })
}

impl Context<'_> {
    async fn rows(
        &self,
        doing: &'static str,
        sql: &str,
        params: Params<'_>,
    ) -> Result<Vec<Row>, PostgresFault> {
        self.transaction.query(doing, &self.table.render(sql), params).await
    }

    /// The row of a statement whose parameter $1 is the outbox table.
    async fn of_table(&self, doing: &'static str, sql: &str) -> Result<Option<Row>, PostgresFault> {
        let rows = self.rows(doing, sql, &[(&self.table.quoted(), Type::TEXT)]).await?;
        Ok(rows.into_iter().next())
    }
}

async fn pooled(context: &Context<'_>) -> Result<Vec<Finding>, PostgresFault> {
    // A second connection may not be available. If the server is unavailable, the next check reports that.
    let refused = |fault: PostgresFault| PostgresFault { kind: FaultKind::Refused, ..fault };
    if !pooler::is_in_transaction_mode(context.database).await.map_err(refused)? {
        return Ok(Vec::new());
    }
    let timeout = humantime::format_duration(context.settings.publish_timeout);
    let remedy = format!(
        "in PgBouncer's configuration, set idle_transaction_timeout, query_timeout and transaction_timeout to 0, or \
         to more than [relay] publish_timeout = {timeout}"
    );
    let problem = "transactions use different server connections";
    let mut findings = vec![POOLER.found("[postgres] url", problem, remedy)];
    if context.settings.postgres.prepared_statements
        && !pooler::keeps_prepared_statements(context.database).await.map_err(refused)?
    {
        findings.push(POOLER_PREPARED_STATEMENTS.found(
            "[postgres] prepared_statements",
            "a prepared statement does not exist in the next transaction",
            "set [postgres] prepared_statements = false, or set max_prepared_statements in PgBouncer 1.21 or later",
        ));
    }
    Ok(findings)
}
