//! The checks that a relay makes at start, as findings.

use super::Asked;
use crate::doctor::codes::{
    COLUMN, ENCODING, GRANT_MISSING, HOLD_COUNT, LANES, MIGRATION, PENDING_INDEX, RELATION, ROW_SECURITY,
    SEQUENCE, SERVER_TOO_OLD, STANDBY,
};
use crate::doctor::{Code, Finding};
use crate::postgres::connection::fault::{answer, unavailable};
use crate::postgres::schema::check::{CheckError, FaultKind, PayloadType, SchemaFault, check};
use crate::relay::failure::Fault;
use deadpool_postgres::Object;
use std::time::Duration;
use tokio::time::timeout;

const DOING: &str = "checking the schema";
const WITHIN: Duration = Duration::from_secs(30);

/// What the check found.
pub(super) struct Schema {
    pub(super) findings: Vec<Finding>,
    pub(super) faults: Vec<FaultKind>,
    pub(super) facts: Facts,
}

/// What the others need to know of the schema, even if something about it is wrong.
pub(super) struct Facts {
    pub(super) payload: PayloadType,
}

const PAYLOAD: &str = "
SELECT format_type(a.atttypid, NULL)
FROM pg_attribute AS a
WHERE a.attrelid = to_regclass($1::text) AND a.attname = 'payload' AND NOT a.attisdropped";

/// In one transaction, which the check itself does not need, but the promise to write nothing.
pub(super) async fn read(asked: &Asked<'_>) -> Result<Schema, Fault> {
    let connection = asked.database.get().await?;
    let begin = "BEGIN ISOLATION LEVEL READ COMMITTED READ ONLY";
    answer(DOING, connection.batch_execute(begin)).await?;
    let checked = timeout(WITHIN, check(&connection, asked.table)).await;
    // A statement may have failed, or an answer be on its way.
    drop(Object::take(connection));
    let faults = match checked {
        Ok(Ok(_)) => Vec::new(),
        Ok(Err(CheckError::Faults(faults))) => faults,
        Ok(Err(CheckError::Server(error))) => return Err(unavailable(DOING, error.to_string())),
        Err(_) => return Err(unavailable(DOING, format!("no response within {WITHIN:?}"))),
    };
    let payload = match asked.of_table(DOING, PAYLOAD).await?.as_ref().map(|row| row.get(0)) {
        Some("jsonb") => PayloadType::Jsonb,
        Some("bytea") => PayloadType::Bytea,
        Some("text") => PayloadType::Text,
        _ => PayloadType::Json,
    };
    Ok(Schema {
        findings: faults.iter().map(finding).collect(),
        faults: faults.iter().map(|fault| fault.kind).collect(),
        facts: Facts { payload },
    })
}

fn finding(fault: &SchemaFault) -> Finding {
    code(fault.kind).found(&fault.place, &fault.problem, &fault.remedy)
}

fn code(kind: FaultKind) -> &'static Code {
    match kind {
        FaultKind::Version => &SERVER_TOO_OLD,
        FaultKind::Standby => &STANDBY,
        FaultKind::Encoding => &ENCODING,
        FaultKind::Migration => &MIGRATION,
        FaultKind::Relation => &RELATION,
        FaultKind::Column => &COLUMN,
        FaultKind::Index => &PENDING_INDEX,
        FaultKind::Sequence => &SEQUENCE,
        FaultKind::Lanes => &LANES,
        FaultKind::Holds => &HOLD_COUNT,
        FaultKind::RowSecurity => &ROW_SECURITY,
        FaultKind::Grant => &GRANT_MISSING,
    }
}
