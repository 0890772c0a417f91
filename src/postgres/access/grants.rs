//! The privileges of the relay, the operators and the writers.
//!
//! The printed GRANT statements and the checks at start use the same lists, so they cannot differ.

use crate::postgres::table::{TableName, quote_identifier};

/// A privilege on a relation of the outbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Right {
    /// The relation, as a placeholder of [`TableName::render`].
    pub(crate) on: &'static str,
    /// SELECT, INSERT, UPDATE or DELETE.
    pub(crate) privilege: &'static str,
    /// The columns that it is limited to; empty for the whole table.
    pub(crate) columns: &'static [&'static str],
}

pub(crate) const fn right(privilege: &'static str, on: &'static str) -> Right {
    Right { on, privilege, columns: &[] }
}

pub(crate) const fn on_columns(
    privilege: &'static str,
    on: &'static str,
    columns: &'static [&'static str],
) -> Right {
    Right { on, privilege, columns }
}

/// Every column without content of the event.
const ROW_COLUMNS: &[&str] = &["id", "event_id", "aggregate_type", "aggregate_id", "created_at", "sent_at"];
const DEAD_LETTER_COLUMNS: &[&str] = &[
    "id",
    "outbox_id",
    "event_id",
    "aggregate_type",
    "aggregate_id",
    "event_type",
    "created_at",
    "topic",
    "reason",
    "error",
    "rejected_at",
    "requeued_at",
];

/// The columns that applications set; the others have defaults.
const EVENT_COLUMNS: &[&str] =
    &["event_id", "aggregate_type", "aggregate_id", "event_type", "payload", "headers"];
const REQUEUED_COLUMNS: &[&str] =
    &["event_id", "aggregate_type", "aggregate_id", "event_type", "payload", "headers", "created_at"];

/// Without role, time, application and address, so that no role can record an action of another one.
const ACT_COLUMNS: &[&str] =
    &["act", "dead_letter_id", "outbox_id", "event_id", "pause_id", "aggregate_type", "topic", "reason"];

const ADD_DEAD_LETTER: Right = on_columns(
    "INSERT",
    "{dead_letter}",
    &[
        "outbox_id",
        "event_id",
        "aggregate_type",
        "aggregate_id",
        "event_type",
        "payload",
        "headers",
        "created_at",
        "topic",
        "reason",
        "error",
    ],
);
/// `SELECT ... FOR UPDATE` needs it too.
const MARK_SENT: Right = on_columns("UPDATE", "{outbox}", &["sent_at"]);
const RECORD_ACT: Right = on_columns("INSERT", "{act}", ACT_COLUMNS);
const READ_SENT_AT: Right = on_columns("SELECT", "{outbox}", &["id", "event_id", "sent_at"]);

/// For the checks at start, in every command.
pub(crate) const CHECK_RIGHTS: &[Right] =
    &[right("SELECT", "{lane}"), right("SELECT", "{hold_version}"), right("SELECT", "{migration}")];

/// For `run`, and for `status`, which operators run with the relay's configuration. The relay cannot read payloads and
/// headers of dead letters.
pub(crate) const RELAY_RIGHTS: &[Right] = &[
    right("SELECT", "{outbox}"),
    MARK_SENT,
    right("DELETE", "{outbox}"),
    right("SELECT", "{lane}"),
    on_columns("UPDATE", "{lane}", &["lane"]), // for SELECT ... FOR UPDATE; the relay changes no lane
    on_columns("SELECT", "{dead_letter}", DEAD_LETTER_COLUMNS),
    ADD_DEAD_LETTER,
    right("SELECT", "{hold}"),
    on_columns("INSERT", "{hold}", &["topic", "aggregate_id", "reason", "error", "probe_at"]),
    on_columns("UPDATE", "{hold}", &["reason", "error", "probes", "probe_at"]),
    right("DELETE", "{hold}"),
    right("SELECT", "{blocked_key}"),
    on_columns(
        "INSERT",
        "{blocked_key}",
        &["aggregate_type", "aggregate_id", "outbox_id", "event_id", "topic", "reason", "error"],
    ),
    right("SELECT", "{pause}"),
    right("SELECT", "{hold_version}"), // the trigger function updates it with the privileges of its owner
    right("SELECT", "{migration}"),
];

/// For `status`, in addition to [`CHECK_RIGHTS`]: no payload and no headers.
pub(crate) const STATUS_RIGHTS: &[Right] = &[
    on_columns("SELECT", "{outbox}", ROW_COLUMNS),
    right("SELECT", "{hold}"),
    right("SELECT", "{blocked_key}"),
    right("SELECT", "{pause}"),
    on_columns("SELECT", "{dead_letter}", DEAD_LETTER_COLUMNS),
];

/// For `dead-letters list` and `show`.
pub(crate) const LETTER_RIGHTS: &[Right] = &[right("SELECT", "{dead_letter}")];

/// For `dead-letters requeue`.
pub(crate) const REQUEUE_RIGHTS: &[Right] = &[
    right("SELECT", "{dead_letter}"),
    on_columns("UPDATE", "{dead_letter}", &["requeued_at"]),
    on_columns("INSERT", "{outbox}", REQUEUED_COLUMNS),
    RECORD_ACT,
];

/// For `dead-letters discard`.
pub(crate) const DISCARD_RIGHTS: &[Right] =
    &[right("SELECT", "{dead_letter}"), right("DELETE", "{dead_letter}"), RECORD_ACT];

/// For `pause`. Without role and time, so that no role can pause as another one.
pub(crate) const PAUSE_RIGHTS: &[Right] = &[
    right("SELECT", "{pause}"),
    on_columns("INSERT", "{pause}", &["topic", "aggregate_type", "aggregate_id", "reason"]),
    RECORD_ACT,
];

/// For `resume`.
pub(crate) const RESUME_RIGHTS: &[Right] =
    &[right("SELECT", "{pause}"), right("DELETE", "{pause}"), RECORD_ACT];

/// For `dead-letters history`.
pub(crate) const HISTORY_RIGHTS: &[Right] = &[right("SELECT", "{act}")];

/// For `blocked-keys list`.
pub(crate) const BLOCK_RIGHTS: &[Right] = &[READ_SENT_AT, right("SELECT", "{blocked_key}")];

/// For `blocked-keys retry`.
pub(crate) const RETRY_RIGHTS: &[Right] =
    &[READ_SENT_AT, right("SELECT", "{blocked_key}"), right("DELETE", "{blocked_key}"), RECORD_ACT];

/// For `blocked-keys dead-letter`, which moves the whole event.
pub(crate) const UNBLOCK_RIGHTS: &[Right] = &[
    right("SELECT", "{outbox}"),
    right("DELETE", "{outbox}"),
    right("SELECT", "{blocked_key}"),
    right("DELETE", "{blocked_key}"),
    on_columns("SELECT", "{dead_letter}", &["id", "outbox_id"]),
    ADD_DEAD_LETTER,
    RECORD_ACT,
];

/// For `reap`.
pub(crate) const REAP_RIGHTS: &[Right] =
    &[on_columns("SELECT", "{outbox}", &["ctid", "id", "sent_at"]), MARK_SENT, right("DELETE", "{outbox}")];

/// For the runbook, which has operators delete a hold in psql.
const RUNBOOK_RIGHTS: &[Right] = &[right("DELETE", "{hold}")];

/// For applications.
const WRITER_RIGHTS: &[Right] = &[on_columns("INSERT", "{outbox}", EVENT_COLUMNS)];

impl Right {
    /// The GRANT statement for `role`, a name without quotes.
    pub(crate) fn grant(&self, table: &TableName, role: &str) -> String {
        let privilege = match self.columns {
            [] => self.privilege.to_owned(),
            columns => format!("{} ({})", self.privilege, columns.join(", ")),
        };
        format!("GRANT {privilege} ON {} TO {};", table.render(self.on), quote_identifier(role))
    }

    /// Whether `other` includes this one.
    fn is_part_of(&self, other: &Right) -> bool {
        let columns = |column| other.columns.is_empty() || other.columns.contains(column);
        self.on == other.on
            && self.privilege == other.privilege
            && (other.columns.is_empty() || !self.columns.is_empty())
            && self.columns.iter().all(columns)
    }
}

/// The union of these lists, without entries that another entry includes.
pub(crate) fn union(lists: &[&[Right]]) -> Vec<Right> {
    let all = lists.concat();
    let needed = |(at, right): (usize, &Right)| {
        let covered = |(other_at, other): (usize, &Right)| {
            right.is_part_of(other) && (!other.is_part_of(right) || other_at < at)
        };
        (!all.iter().enumerate().any(covered)).then_some(*right)
    };
    all.iter().enumerate().filter_map(needed).collect()
}

/// The GRANT statement for USAGE on the schema.
pub(crate) fn schema_grant(table: &TableName, role: &str) -> String {
    format!("GRANT USAGE ON SCHEMA {} TO {};", quote_identifier(table.schema()), quote_identifier(role))
}

fn grants(table: &TableName, role: &str, lists: &[&[Right]]) -> String {
    let mut sql = schema_grant(table, role) + "\n";
    for right in union(lists) {
        sql += &right.grant(table, role);
        sql.push('\n');
    }
    sql
}

/// GRANT statements for the role that the relay connects as, one per line.
pub fn relay_grants(table: &TableName, role: &str) -> String {
    grants(table, role, &[RELAY_RIGHTS])
}

/// GRANT statements for operators, one per line.
pub fn operator_grants(table: &TableName, role: &str) -> String {
    let lists = [
        CHECK_RIGHTS,
        STATUS_RIGHTS,
        LETTER_RIGHTS,
        REQUEUE_RIGHTS,
        DISCARD_RIGHTS,
        HISTORY_RIGHTS,
        BLOCK_RIGHTS,
        RETRY_RIGHTS,
        UNBLOCK_RIGHTS,
        PAUSE_RIGHTS,
        RESUME_RIGHTS,
        REAP_RIGHTS,
        RUNBOOK_RIGHTS,
    ];
    grants(table, role, &lists)
}

/// GRANT statements for monitoring, one per line.
pub(crate) fn monitor_grants(table: &TableName, role: &str) -> String {
    grants(table, role, &[CHECK_RIGHTS, STATUS_RIGHTS])
}

/// GRANT statements for applications, one per line. They allow the helper crate, `outbox_enqueue` and plain INSERTs. An
/// identity column needs no privilege on its sequence.
pub fn writer_grants(table: &TableName, role: &str) -> String {
    let (enqueue, role_name) = (table.enqueue(), quote_identifier(role));
    grants(table, role, &[WRITER_RIGHTS]) + &format!("GRANT EXECUTE ON FUNCTION {enqueue} TO {role_name};\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::postgres::table::unknown_placeholders;

    #[test]
    fn privileges_of_the_relay_name_known_relations_and_do_not_overlap() {
        for right in RELAY_RIGHTS {
            assert_eq!(unknown_placeholders(right.on), [""; 0]);
        }
        assert_eq!(union(&[RELAY_RIGHTS]), RELAY_RIGHTS);
    }

    #[test]
    fn union_leaves_out_included_privileges() {
        let (whole, part) = (right("SELECT", "{outbox}"), READ_SENT_AT);
        assert_eq!(union(&[&[part, whole], &[part, MARK_SENT, whole]]), [whole, MARK_SENT]);
        assert_eq!(union(&[&[part], &[right("SELECT", "{act}")]]), [part, right("SELECT", "{act}")]);
    }

    #[test]
    fn monitoring_reads_no_payload_and_changes_nothing() {
        let table: TableName = "app.outbox".parse().unwrap();
        let sql = monitor_grants(&table, "m");
        for grant in sql.lines() {
            assert!(grant.starts_with("GRANT SELECT") || grant.starts_with("GRANT USAGE"), "{grant}");
        }
        assert!(!sql.contains("payload") && !sql.contains("headers"), "{sql}");
        assert!(!sql.contains("GRANT SELECT ON \"app\".\"outbox\" "), "{sql}");
        assert!(!sql.contains("GRANT SELECT ON \"app\".\"outbox_dead_letter\" "), "{sql}");
    }

    #[test]
    fn grants_quote_the_role() {
        let table: TableName = "app.outbox".parse().unwrap();
        let sql = relay_grants(&table, "the relay");
        assert!(sql.contains("GRANT UPDATE (sent_at) ON \"app\".\"outbox\" TO \"the relay\";\n"), "{sql}");
        assert!(
            writer_grants(&table, "shop")
                .ends_with("GRANT EXECUTE ON FUNCTION \"app\".\"outbox_enqueue\" TO \"shop\";\n")
        );
    }
}
