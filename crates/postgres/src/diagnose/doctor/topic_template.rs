//! Compares the recorded topic template with the configuration.

use super::Context;
use crate::access::grants::{RECORD_PRIVILEGES, SETTING_COLUMNS};
use crate::schema::check::relations::RELAY;
use crate::schema::setting;
use relay::failure::PostgresFault;
use settings::doctor::Finding;
use settings::doctor::codes::{TOPIC_TEMPLATE_DIFFERS, TOPIC_TEMPLATE_UNRECORDED};
use tokio_postgres::types::Type;

const DOING: &str = "reading the privileges on the recorded settings";
const PLACE: &str = "[outbox] topic";

/// Whether the role may read and record the settings, or is an operator's, which need not. No row if the table is missing.
const PRIVILEGES: &str = "
SELECT has_table_privilege(c.oid, 'SELECT'),
       has_column_privilege(c.oid, 'topic_template', 'INSERT')
       AND NOT EXISTS (SELECT FROM pg_attribute AS a
                       WHERE a.attrelid = c.oid AND a.attname = ANY ($3::text[])
                         AND NOT has_column_privilege(c.oid, a.attnum, 'UPDATE'))
       OR EXISTS ({relay})
FROM pg_class AS c
JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = $1::text AND c.relname = $2::text AND c.relkind = 'r'";

pub(super) async fn findings(context: &Context<'_>) -> Result<Vec<Finding>, PostgresFault> {
    let (schema, relation) = (context.table.schema(), context.table.name_of("{setting}"));
    let rows = context
        .rows(
            DOING,
            &PRIVILEGES.replace("{relay}", RELAY),
            &[(&schema, Type::TEXT), (&relation, Type::TEXT), (&SETTING_COLUMNS, Type::TEXT_ARRAY)],
        )
        .await?;
    let Some(row) = rows.first() else {
        let remedy = "recreate it with its statements from `outbox-relay migrate --print --config FILE`";
        let problem = format!("the table {} is missing", context.table.render("{setting}"));
        return Ok(vec![TOPIC_TEMPLATE_UNRECORDED.found(PLACE, problem, remedy)]);
    };
    let (may_read, may_record): (bool, bool) = (row.get(0), row.get(1));
    let mut findings = Vec::new();
    if !(may_read && may_record) {
        let role = &context.role.name;
        let grants: Vec<String> =
            RECORD_PRIVILEGES.iter().map(|privilege| privilege.grant(context.table, role)).collect();
        let problem = format!("role {role} lacks a privilege on {}", context.table.render("{setting}"));
        findings.push(TOPIC_TEMPLATE_UNRECORDED.found(PLACE, problem, grants.join(" ")));
    }
    if may_read {
        findings.extend(difference(context).await?);
    }
    Ok(findings)
}

/// Nothing is recorded before the first relay starts.
async fn difference(context: &Context<'_>) -> Result<Option<Finding>, PostgresFault> {
    let recorded = setting::read(&context.transaction, context.table).await?;
    let configured = context.settings.topics.template.to_string();
    let different = recorded.filter(|recorded| recorded.topic_template != configured);
    Ok(different.map(|recorded| {
        let problem = format!("the configured template is {configured}. The database has {recorded}");
        let remedy = "use the same [outbox] topic for every relay of this table, and restart them: each relay records \
                      its template when it starts";
        TOPIC_TEMPLATE_DIFFERS.found(PLACE, problem, remedy)
    }))
}
