//! The database checks of `outbox-relay doctor`. Every transaction is READ ONLY.

pub mod connection;
pub mod events;
pub mod privileges;
pub mod table;

use crate::columns::Column;
use crate::connection::exec::{Params, ShortTransaction};
use crate::connection::pool::Database;
use crate::options::{OnSent, Postgres};
use crate::schema::errors::SchemaFaultKind;
use crate::sql::Script;
use crate::table::TableName;
use relay::failure::{FaultKind, PostgresFault};
use relay::topic::TopicRules;
use settings::doctor::{CHECK_SKIPPED, Finding, TopicInUse};
use std::time::Duration;
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

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

/// A check of one query. Checks that need more are functions.
struct Check {
    /// What is not checked if the query fails.
    what: &'static str,
    /// For the error.
    doing: &'static str,
    needs: fn(&Context<'_>) -> bool,
    query: &'static str,
    params: fn(&Context<'_>) -> Vec<Value>,
    /// Returns findings with their remedies.
    judge: fn(&Context<'_>, &[Row]) -> Vec<Finding>,
}

impl Check {
    /// A check that always applies.
    const fn new(
        what: &'static str,
        doing: &'static str,
        query: &'static str,
        params: fn(&Context<'_>) -> Vec<Value>,
        judge: fn(&Context<'_>, &[Row]) -> Vec<Finding>,
    ) -> Check {
        Check { what, doing, needs: |_| true, query, params, judge }
    }
}

/// A parameter of a query.
enum Value {
    Text(String),
    Texts(Vec<String>),
    Number(i64),
}

/// What the checks need.
struct Context<'a> {
    settings: &'a Settings<'a>,
    database: &'a Database,
    transaction: ShortTransaction,
    table: &'a TableName,
    role: Role,
    /// The faults that the checks at start have found.
    faults: Vec<SchemaFaultKind>,
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
    let transaction = ShortTransaction::reading(database.clone());
    let role = role(&transaction).await?;
    let faults = Vec::new();
    let mut context = Context { settings, database, transaction, table: settings.table, role, faults };
    let found = &mut examined.findings;

    add(found, "the clock", connection::clock(&context).await)?;
    run(&context, &[connection::TLS], found).await?;
    add(found, "the pooler", connection::pooler(&context).await)?;
    run(&context, &connection::TIMEOUTS, found).await?;

    let schema = table::schema(&mut context).await?;
    found.extend(schema.findings.iter().cloned());
    // Without the right table, the other checks would only repeat these findings.
    let has = |kind| context.faults.contains(&kind);
    if has(SchemaFaultKind::Version) || has(SchemaFaultKind::Migration) || has(SchemaFaultKind::Relation) {
        return Ok(examined);
    }
    run(&context, &privileges::CHECKS, found).await?;
    add(found, "the recorded topic template", events::topic_template(&context).await)?;
    run(&context, &table::CHECKS, found).await?;
    if !has(SchemaFaultKind::Column) {
        if !has(SchemaFaultKind::Index) {
            add(found, "the claim's plan", table::plan(&context, &schema).await)?;
        }
        match events::examine(&context, &schema).await {
            Ok((findings, topics)) => {
                found.extend(findings);
                examined.topics = topics;
            }
            Err(fault) => add(found, "the events that wait", Err(fault))?,
        }
    }
    Ok(examined)
}

async fn run(context: &Context<'_>, checks: &[Check], found: &mut Vec<Finding>) -> Result<(), PostgresFault> {
    for check in checks {
        if (check.needs)(context) {
            let values = (check.params)(context);
            let params: Vec<_> = values.iter().map(Value::parameter).collect();
            let rows = context.rows(check.doing, check.query, &params).await;
            add(found, check.what, rows.map(|rows| (check.judge)(context, &rows)))?;
        }
    }
    Ok(())
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

fn no_params(_: &Context<'_>) -> Vec<Value> {
    Vec::new()
}

impl Value {
    fn parameter(&self) -> (&(dyn ToSql + Sync), Type) {
        match self {
            Value::Text(text) => (text, Type::TEXT),
            Value::Texts(texts) => (texts, Type::TEXT_ARRAY),
            Value::Number(number) => (number, Type::INT8),
        }
    }
}

impl Context<'_> {
    async fn rows(
        &self,
        doing: &'static str,
        text: &'static str,
        params: Params<'_>,
    ) -> Result<Vec<Row>, PostgresFault> {
        self.transaction.query(doing, &Script::new(text, self.table).render(), params).await
    }

    /// The place of findings about the outbox.
    fn outbox(&self) -> String {
        self.table.to_string()
    }

    /// The outbox for SQL text, as a parameter.
    fn quoted(&self) -> Value {
        Value::Text(self.table.quoted())
    }

    /// The name of the column, as a parameter.
    fn sent_at(&self) -> Value {
        Value::Text(self.table.columns().name(Column::SentAt).to_owned())
    }
}
