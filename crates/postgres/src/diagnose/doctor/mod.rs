//! The database checks of `outbox-relay doctor`. Every transaction is READ ONLY.

pub mod events;
pub mod session;
pub mod table;

use crate::columns::PayloadType;
use crate::connection::exec::{Params, ShortTransaction};
use crate::connection::pool::Database;
use crate::options::{OnSent, Postgres};
use crate::schema::errors::{COLUMN, MIGRATION, PENDING_INDEX, RELATION, SERVER_TOO_OLD};
use crate::sql::Script;
use crate::table::TableName;
use relay::failure::{FaultKind, PostgresFault};
use relay::topic::TopicRules;
use settings::doctor::{CHECK_SKIPPED, Code, Finding, TopicInUse};
use std::time::Duration;
use tokio_postgres::Row;

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
    pub postgres: &'a Postgres,
    pub table: &'a TableName,
    pub topics: TopicRules,
    pub on_sent: OnSent,
    /// The names of headers that a row cannot set.
    pub reserved_headers: Vec<String>,
    pub batch_rows: usize,
    /// How long a claim may wait for Kafka.
    pub publish_timeout: Duration,
    /// The same with its flow.
    pub claim_within: Duration,
    /// The `application_name` of relays.
    pub relay_name: String,
    /// The size of the producer's largest record.
    pub record_bytes_max: usize,
}

type Checked = Result<Vec<Finding>, PostgresFault>;

struct Context<'a> {
    settings: &'a Settings<'a>,
    database: &'a Database,
    transaction: ShortTransaction,
    table: &'a TableName,
    role: Role,
}

struct Role {
    name: String,
    database: String,
    is_superuser: bool,
}

from_row!(Role: name, database, is_superuser);

/// The result of the checks at start.
struct Schema {
    findings: Vec<Finding>,
    /// Whether only a migration is pending.
    is_older: bool,
    payload: PayloadType,
    topics: TopicRules,
}

impl Schema {
    fn has(&self, code: &Code) -> bool {
        self.findings.iter().any(|finding| finding.code == code)
    }
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
    let rows = transaction.query("reading the role", ROLE, &[]).await?;
    let Some(role) = rows.first().map(Role::from) else { unreachable!("the connected role exists") };
    let context = Context { settings, database, transaction, table: settings.table, role };
    let (context, found) = (&context, &mut examined.findings);

    add(found, "the clock", session::clock(context).await)?;
    add(found, "TLS", session::encryption(context).await)?;
    add(found, "the pooler", session::pooler(context).await)?;
    add(found, "timeouts", session::over_socket(context).await)?;
    add(found, "timeouts", session::timeouts(context).await)?;

    let schema = table::schema(context).await?;
    found.extend(schema.findings.iter().cloned());
    // Without the right table, the other checks would only repeat these findings.
    if schema.has(&SERVER_TOO_OLD) || schema.has(&MIGRATION) && !schema.is_older || schema.has(&RELATION) {
        return Ok(examined);
    }
    add(found, "rights", session::schema_creators(context).await)?;
    add(found, "rights", session::unneeded_privileges(context).await)?;
    add(found, "rights", session::role_attributes(context).await)?;
    // The other findings of a superuser would follow from that one.
    if !context.role.is_superuser {
        add(found, "rights", session::role_on_outbox(context).await)?;
        add(found, "rights", session::other_tables(context).await)?;
    }
    add(found, "the recorded topic template", events::topic_template(context).await)?;
    add(found, "indexes", table::indexes(context, &schema).await)?;
    add(found, "the sequence", table::sequence(context).await)?;
    add(found, "triggers", table::triggers(context).await)?;
    add(found, "constraints", table::constraints(context).await)?;
    add(found, "autovacuum", table::autovacuum(context).await)?;
    add(found, "what holds vacuum back", table::vacuum_holders(context).await)?;
    if schema.has(&COLUMN) {
        return Ok(examined);
    }
    if !schema.has(&PENDING_INDEX) {
        add(found, "the claim's plan", table::plan(context, &schema).await)?;
    }
    let events = events::examine(context, &schema, &mut examined.topics).await;
    add(found, "the events that wait", events)?;
    Ok(examined)
}

/// Adds the findings of one check. A fault is a finding too, unless the server is unavailable.
fn add(found: &mut Vec<Finding>, what: &str, checked: Checked) -> Result<(), PostgresFault> {
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

impl Context<'_> {
    async fn rows(
        &self,
        doing: &'static str,
        text: &'static str,
        params: Params<'_>,
    ) -> Result<Vec<Row>, PostgresFault> {
        self.transaction.query(doing, &Script::new(text, self.table).render(), params).await
    }
}
