//! The statements of a running relay, complete for one outbox: the files of `sql/relay/`. `outbox-relay migrate --print-queries`
//! prints them.

use crate::columns::{Column, PayloadType};
use crate::connection::exec::{FIRST, plain_settings, reaper_settings};
use crate::options::OnSent;
use crate::sql;
use crate::sql::{Script, sql};
use crate::table::{TableName, fill, quote_literal};
use pg_outbox::topic::TopicPart;
use relay::topic::TopicRules;
use std::fmt;

/// A statement without variables.
struct Query<'a> {
    /// The name of its file.
    name: &'static str,
    file: &'static str,
    sql: &'a str,
}

/// A struct of statements, each a file of its name.
macro_rules! queries {
    ($(#[$doc:meta])* $group:ident { $($name:ident),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub(crate) struct $group {
            $(pub(crate) $name: String),+
        }

        impl $group {
            fn render(render: impl Fn(&'static str) -> String) -> $group {
                $group { $($name: render(sql!("relay/", stringify!($name)))),+ }
            }

            fn all(&self) -> Vec<Query<'_>> {
                let query = |name, file, sql| Query { name, file, sql };
                vec![$(query(stringify!($name), sql!("relay/", stringify!($name)), self.$name.as_str())),+]
            }
        }
    };
}

queries! {
    /// The statements of the scout, the cycle and the prober.
    Queries {
        glance, look, scan, writers, backlog, oldest,
        lock, read, peek, read_new, read_new_if_free, read_head, read_row,
        mark, mark_around_locks, delete, delete_around_locks, dead_letter, hold, block, examples, read_first,
        count, held, pauses, due, release_holds, postpone, retry_soon, renew_leases, make_due, unsent,
    }
}

queries! {
    Reaping { edge, reap, reap_around_locks, count_old }
}

impl Reaping {
    pub(crate) fn new(table: &TableName) -> Reaping {
        Reaping::render(|file| Script::new(file, table).render())
    }
}

#[derive(Clone, Debug)]
pub struct Statements {
    pub payload: PayloadType,
    pub on_sent: OnSent,
    /// The size of the largest record in bytes. The read leaves out the large values of larger rows.
    pub record_bytes_max: i32,
    pub(crate) table: TableName,
    topics: TopicRules,
    pub(crate) queries: Queries,
}

impl Statements {
    pub fn new(
        table: &TableName,
        payload: PayloadType,
        on_sent: OnSent,
        topics: impl Into<TopicRules>,
        record_bytes_max: i32,
    ) -> Statements {
        let topics = topics.into();
        let has_event_type = topics.template.has_event_type();
        let queries = Queries::render(|file| {
            script(file, table, &topics)
                .set("payload_length", payload.length_sql("o.payload"))
                .set("payload_bytes", payload.bytes_sql("payload"))
                .set("large_event_type", if has_event_type { "ELSE left(p.event_type, 300)" } else { "" })
                .when("has_event_type", has_event_type)
                .when("deletes", on_sent == OnSent::Delete)
                .render()
        });
        Statements { payload, on_sent, record_bytes_max, table: table.clone(), topics, queries }
    }

    /// The same statements for a payload column of this type.
    pub(crate) fn with_payload(&self, payload: PayloadType) -> Statements {
        Statements::new(&self.table, payload, self.on_sent, self.topics.clone(), self.record_bytes_max)
    }

    /// The text of the statement with this name, for tests of its plan.
    pub fn text(&self, name: &str) -> &str {
        let query = self.queries.all().into_iter().find(|query| query.name == name);
        query.map_or_else(|| unreachable!("there is no statement {name}"), |query| query.sql)
    }

    /// The name and the text of every statement of a running relay, to recognize them in the server's statistics.
    pub fn named(&self) -> Vec<(&'static str, String)> {
        let reaping = Reaping::new(&self.table);
        self.all(&reaping).map(|query| (query.name, query.sql.to_owned())).collect()
    }

    /// Every statement of a running relay: those of the cycle in order, then those of the prober and the reaper.
    fn all<'a>(&'a self, reaping: &'a Reaping) -> impl Iterator<Item = Query<'a>> {
        let others = match self.on_sent {
            OnSent::Mark => ["delete", "delete_around_locks"],
            OnSent::Delete => ["mark", "mark_around_locks"],
        };
        let all = self.queries.all().into_iter().chain(reaping.all());
        all.filter(move |query| !others.contains(&query.name))
    }
}

impl Query<'_> {
    /// The types of the parameters, as SQL writes them: the first cast of each.
    fn types(&self) -> impl Iterator<Item = &str> {
        (1..=sql::parameters(self.file).len()).map(|number| {
            let (_, cast) = self.sql.split_once(&format!("${number}::")).unwrap_or(("", "unknown"));
            let end = cast.find(|c: char| !c.is_ascii_alphanumeric() && !"[]".contains(c));
            &cast[..end.unwrap_or(cast.len())]
        })
    }
}

/// Comments with the name, the purpose and the parameters, then the statement as `PREPARE`.
impl fmt::Display for Query<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let purpose = sql::purpose(self.file);
        let (first, rest) = purpose.trim_end_matches('.').split_at(1);
        writeln!(f, "-- {}: {}{rest}", self.name, first.to_lowercase())?;
        for (number, (meaning, sql_type)) in (1..).zip(sql::parameters(self.file).iter().zip(self.types())) {
            writeln!(f, "-- ${number} {sql_type}: {meaning}")?;
        }
        let types: Vec<&str> = self.types().collect();
        writeln!(f, "PREPARE {} ({}) AS\n{};", self.name, types.join(", "), self.sql)
    }
}

/// A file, with the variables that depend on the topics.
pub(crate) fn script<'a>(file: &'static str, table: &'a TableName, topics: &TopicRules) -> Script<'a> {
    let is_by_type = topics.is_by_aggregate_type();
    // What a row and the example of its key must have in common besides the key.
    let key_of = |row: &str| match is_by_type {
        true => format!("{row}.aggregate_type"),
        false => topic_with(topics, |column| format!("{row}.{column}")),
    };
    Script::new(file, table)
        .set("id", table.columns().name(Column::Id))
        .set("rows_with_topic", table.rows(topics.column))
        .set("whole_rows", table.whole_rows(topics.column))
        .set("topic", topic_with(topics, |column| format!("o.{column}")))
        .set("topic_key", key_of("o"))
        .set("example_topic_key", key_of("w"))
        .set("same_type", if is_by_type { " AND b.aggregate_type = o.aggregate_type" } else { "" })
        .when("has_topic", topics.column)
        .when("is_one_topic", topics.is_constant())
}

/// SQL for the topic of the row `o` of the table itself, in a statement that changes rows.
pub(crate) fn topic_of_target_sql(table: &TableName, topics: &TopicRules) -> String {
    topic_with(topics, |column| table.column_of_row(column))
}

/// The topic of a row with these columns. It is never NULL.
///
/// Values that the planner cannot compare directly with a column are cut, because the server would read all of a large one.
/// What is cut is too long for a topic anyway.
fn topic_with(topics: &TopicRules, column: impl Fn(Column) -> String) -> String {
    let template = &topics.template;
    if topics.is_constant() {
        return quote_literal(template.prefix());
    }
    let part = |part: &TopicPart| match part {
        TopicPart::Text(text) => quote_literal(text),
        TopicPart::EventType => format!("left({}, 300)", column(Column::EventType)),
        _ => format!("left({}, 300)", column(Column::AggregateType)),
    };
    let rendered = template.parts().iter().map(part).collect::<Vec<_>>().join(" || ");
    match topics.column {
        true => format!("coalesce(left({}, 300), {rendered})", column(Column::Topic)),
        false => rendered,
    }
}

/// The statement that reaps, for tests of its plan.
pub fn reap_sql(table: &TableName) -> String {
    Reaping::new(table).reap
}

/// Every statement of a running relay as `PREPARE`, with its purpose and parameters in a comment: a script for psql, to run EXPLAIN
/// on them.
pub fn print(statements: &Statements) -> String {
    let in_comment = |settings: &str| settings.replace("; ", ";\n--   ");
    let mut script = fill(sql!("migrate/queries_header"), |placeholder| match placeholder {
        "table" => Some(statements.table.to_string()),
        "on_sent" => Some(statements.on_sent.to_string()),
        "template" => Some(statements.topics.template.to_string()),
        "payload" => Some(statements.payload.to_string()),
        "first" => Some(FIRST.to_owned()),
        "settings" => Some(in_comment(&plain_settings())),
        "reaper" => Some(in_comment(&reaper_settings())),
        _ => None,
    });
    for query in statements.all(&Reaping::new(&statements.table)) {
        script.push('\n');
        script.push_str(&query.to_string());
    }
    script
}
