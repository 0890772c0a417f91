//! Changes to the headers of dead letters that are requeued. The dead letters themselves keep their headers.

use tokio_postgres::types::{ToSql, Type};

/// What to change. Headers that are not a JSON object stay as they are.
#[derive(Clone, Debug)]
pub struct HeaderChanges {
    /// Whether to replace values that are not strings by their JSON text, and to drop null.
    stringify: bool,
    /// The names of headers to drop.
    drop: Vec<String>,
    /// The headers to set, as a JSON object.
    set: String,
}

/// Refers to the column `headers`, and to three parameters.
const CHANGED: &str = "CASE WHEN headers IS NULL OR jsonb_typeof(headers) IN ('object', 'null') THEN nullif((
        SELECT coalesce(jsonb_object_agg(h.key, CASE WHEN $STRINGIFY::boolean THEN to_jsonb(h.value #>> '{}') ELSE h.value END),
                        jsonb_build_object())
        FROM jsonb_each(CASE WHEN jsonb_typeof(headers) = 'object' THEN headers ELSE jsonb_build_object() END) AS h
        WHERE h.key <> ALL ($DROP::text[]) AND NOT ($STRINGIFY AND jsonb_typeof(h.value) = 'null')
    ) || $SET::text::jsonb, jsonb_build_object()) ELSE headers END";

impl HeaderChanges {
    pub fn new(stringify: bool, drop: &[String], set: &[(String, String)]) -> HeaderChanges {
        let set = set.iter().map(|(name, value)| (name.clone(), value.clone().into()));
        let set = serde_json::Value::Object(set.collect()).to_string();
        HeaderChanges { stringify, drop: drop.to_vec(), set }
    }

    pub(crate) fn is_none(&self) -> bool {
        !self.stringify && self.drop.is_empty() && self.set == "{}"
    }

    /// The changed headers as an expression, whose parameters begin after `params`. Adds them.
    pub(super) fn sql<'a>(&'a self, params: &mut Vec<(&'a (dyn ToSql + Sync), Type)>) -> String {
        let names = ["$STRINGIFY", "$DROP", "$SET"].into_iter().zip(params.len() + 1..);
        params.extend::<[(&'a (dyn ToSql + Sync), Type); 3]>([
            (&self.stringify, Type::BOOL),
            (&self.drop, Type::TEXT_ARRAY),
            (&self.set, Type::TEXT),
        ]);
        names.fold(CHANGED.to_owned(), |sql, (name, number)| sql.replace(name, &format!("${number}")))
    }
}
