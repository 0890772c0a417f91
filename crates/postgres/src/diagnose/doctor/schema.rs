//! The checks at start, as findings.

use super::Context;
use crate::connection::fault::unavailable;
use crate::connection::transaction::Params;
use crate::schema::check::{CheckError, PayloadType, SchemaFault, SchemaFaultKind, check};
use crate::table::Column;
use deadpool_postgres::Object;
use relay::failure::PostgresFault;
use relay::topic::TopicRules;
use settings::doctor::codes::{
    COLUMN, ENCODING, GRANT_MISSING, HOLD_COUNT, LANES, MIGRATION, PENDING_INDEX, RELATION, ROW_SECURITY,
    SCHEMA_NEWER, SEQUENCE, SERVER_TOO_OLD, STANDBY,
};
use settings::doctor::{Code, Finding};
use std::time::Duration;
use tokio::time::timeout;
use tokio_postgres::types::Type;

const DOING: &str = "checking the schema";
const WITHIN: Duration = Duration::from_secs(30);

/// The result of the checks at start.
pub(super) struct Schema {
    pub(super) findings: Vec<Finding>,
    pub(super) faults: Vec<SchemaFaultKind>,
    pub(super) payload: PayloadType,
    pub(super) topics: TopicRules,
}

const COLUMNS: &str = "
SELECT max(format_type(a.atttypid, NULL)) FILTER (WHERE a.attname = $2::text),
       count(*) FILTER (WHERE a.attname = $3::text) > 0
FROM pg_attribute AS a
WHERE a.attrelid = to_regclass($1::text) AND a.attname IN ($2::text, $3::text) AND NOT a.attisdropped";

/// Runs the checks at start.
pub(super) async fn read(context: &Context<'_>) -> Result<Schema, PostgresFault> {
    let connection = context.database.get().await?;
    let configured = &context.settings.topics;
    let checked = timeout(WITHIN, check(&connection, context.table, configured.into())).await;
    // A statement may have failed, or an answer may be outstanding.
    drop(Object::take(connection));
    let (faults, difference) = match checked {
        Ok(Ok(facts)) => (Vec::new(), facts.difference),
        Ok(Err(CheckError::Faults(faults))) => (faults, None),
        Ok(Err(CheckError::Server(error))) => return Err(unavailable(DOING, error.to_string())),
        Err(_) => return Err(unavailable(DOING, format!("no response within {WITHIN:?}"))),
    };
    // Not from the facts, because a schema with faults has none.
    let (table, names) = (context.table.quoted(), context.table.columns());
    let (payload, topic) = (names.name(Column::Payload), names.topic());
    let params: Params<'_> = &[(&table, Type::TEXT), (&payload, Type::TEXT), (&topic, Type::TEXT)];
    let rows = context.rows(DOING, COLUMNS, params).await?;
    let columns = rows.first();
    let payload = match columns.and_then(|row| row.get(0)) {
        Some("jsonb") => PayloadType::Jsonb,
        Some("bytea") => PayloadType::Bytea,
        Some("text") => PayloadType::Text,
        _ => PayloadType::Json,
    };
    let newer = difference.map(|difference| {
        SCHEMA_NEWER.found(
            context.table.to_string(),
            difference,
            "complete the upgrade, or leave it after a rollback",
        )
    });
    Ok(Schema {
        findings: faults.iter().map(finding).chain(newer).collect(),
        faults: faults.iter().map(|fault| fault.kind).collect(),
        payload,
        topics: configured.clone().with_column(columns.is_some_and(|row| row.get(1))),
    })
}

fn finding(fault: &SchemaFault) -> Finding {
    code(fault.kind).found(&fault.place, &fault.problem, &fault.remedy)
}

fn code(kind: SchemaFaultKind) -> &'static Code {
    match kind {
        SchemaFaultKind::Version => &SERVER_TOO_OLD,
        SchemaFaultKind::Standby => &STANDBY,
        SchemaFaultKind::Encoding => &ENCODING,
        SchemaFaultKind::Migration | SchemaFaultKind::Pending => &MIGRATION,
        SchemaFaultKind::Relation => &RELATION,
        SchemaFaultKind::Column => &COLUMN,
        SchemaFaultKind::Index => &PENDING_INDEX,
        SchemaFaultKind::Sequence => &SEQUENCE,
        SchemaFaultKind::Lanes => &LANES,
        SchemaFaultKind::Holds => &HOLD_COUNT,
        SchemaFaultKind::RowSecurity => &ROW_SECURITY,
        SchemaFaultKind::Grant => &GRANT_MISSING,
    }
}
