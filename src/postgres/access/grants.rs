//! The rights that the relay, the writers and the operators need, and no more.
//!
//! One list serves both the GRANT statements that are printed and the checks at start, so they cannot differ.

use crate::postgres::table::{TableName, quote_identifier};

/// One right on one relation of an outbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Right {
    /// The relation, as a placeholder of [`TableName::render`].
    pub(crate) on: &'static str,
    /// SELECT, INSERT, UPDATE or DELETE.
    pub(crate) privilege: &'static str,
    /// The only columns it is needed on; none for the whole table.
    pub(crate) columns: &'static [&'static str],
}

pub(crate) const fn right(privilege: &'static str, on: &'static str) -> Right {
    Right { on, privilege, columns: &[] }
}

pub(crate) const fn of(privilege: &'static str, on: &'static str, columns: &'static [&'static str]) -> Right {
    Right { on, privilege, columns }
}

/// What tells about a row, and not what the event holds.
const ABOUT_ROW: &[&str] = &["id", "event_id", "aggregate_type", "aggregate_id", "created_at", "sent_at"];
const ABOUT_DEAD_LETTER: &[&str] = &[
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

/// What applications set; the other columns have defaults.
const OF_EVENT: &[&str] = &["event_id", "aggregate_type", "aggregate_id", "event_type", "payload", "headers"];
const OF_REQUEUED: &[&str] =
    &["event_id", "aggregate_type", "aggregate_id", "event_type", "payload", "headers", "created_at"];

/// Not the role, the time, the application and the address: nobody records an act as somebody else's.
const OF_ACT: &[&str] =
    &["act", "dead_letter_id", "outbox_id", "event_id", "pause_id", "aggregate_type", "topic", "reason"];

const BURY: Right = of(
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
/// Also what `SELECT ... FOR UPDATE` asks for.
const SETTLE: Right = of("UPDATE", "{outbox}", &["sent_at"]);
const RECORD_ACT: Right = of("INSERT", "{act}", OF_ACT);
const WHETHER_SENT: Right = of("SELECT", "{outbox}", &["id", "event_id", "sent_at"]);

/// What the checks at start read, whoever makes them.
pub(crate) const CHECK_RIGHTS: &[Right] =
    &[right("SELECT", "{lane}"), right("SELECT", "{hold_version}"), right("SELECT", "{migration}")];

/// What the relay does to each relation, and `status` with it, since people run that with the relay's configuration. Of
/// dead letters it reads neither payload nor headers.
pub(crate) const RELAY_RIGHTS: &[Right] = &[
    right("SELECT", "{outbox}"),
    SETTLE,
    right("DELETE", "{outbox}"),
    right("SELECT", "{lane}"),
    of("UPDATE", "{lane}", &["lane"]), // what SELECT ... FOR UPDATE asks for; the relay changes no lane
    of("SELECT", "{dead_letter}", ABOUT_DEAD_LETTER),
    BURY,
    right("SELECT", "{hold}"),
    of("INSERT", "{hold}", &["topic", "aggregate_id", "reason", "error", "probe_at"]),
    of("UPDATE", "{hold}", &["reason", "error", "probes", "probe_at"]),
    right("DELETE", "{hold}"),
    right("SELECT", "{blocked_key}"),
    of(
        "INSERT",
        "{blocked_key}",
        &["aggregate_type", "aggregate_id", "outbox_id", "event_id", "topic", "reason", "error"],
    ),
    right("SELECT", "{pause}"),
    right("SELECT", "{hold_version}"), // its trigger function counts with its owner's rights
    right("SELECT", "{migration}"),
];

/// What `status` needs, beside [`CHECK_RIGHTS`]: no payload and no headers.
pub(crate) const STATUS_RIGHTS: &[Right] = &[
    of("SELECT", "{outbox}", ABOUT_ROW),
    right("SELECT", "{hold}"),
    right("SELECT", "{blocked_key}"),
    right("SELECT", "{pause}"),
    of("SELECT", "{dead_letter}", ABOUT_DEAD_LETTER),
];

/// What `dead-letters list` and `show` need.
pub(crate) const LETTER_RIGHTS: &[Right] = &[right("SELECT", "{dead_letter}")];

/// What `dead-letters requeue` needs.
pub(crate) const REQUEUE_RIGHTS: &[Right] = &[
    right("SELECT", "{dead_letter}"),
    of("UPDATE", "{dead_letter}", &["requeued_at"]),
    of("INSERT", "{outbox}", OF_REQUEUED),
    RECORD_ACT,
];

/// What `dead-letters discard` needs.
pub(crate) const DISCARD_RIGHTS: &[Right] =
    &[right("SELECT", "{dead_letter}"), right("DELETE", "{dead_letter}"), RECORD_ACT];

/// What `pause` needs. Not who and when: nobody pauses as somebody else.
pub(crate) const PAUSE_RIGHTS: &[Right] = &[
    right("SELECT", "{pause}"),
    of("INSERT", "{pause}", &["topic", "aggregate_type", "aggregate_id", "reason"]),
    RECORD_ACT,
];

/// What `resume` needs.
pub(crate) const RESUME_RIGHTS: &[Right] =
    &[right("SELECT", "{pause}"), right("DELETE", "{pause}"), RECORD_ACT];

/// What `dead-letters history` needs.
pub(crate) const HISTORY_RIGHTS: &[Right] = &[right("SELECT", "{act}")];

/// What `blocked-keys list` needs.
pub(crate) const BLOCK_RIGHTS: &[Right] = &[WHETHER_SENT, right("SELECT", "{blocked_key}")];

/// What `blocked-keys retry` needs.
pub(crate) const RETRY_RIGHTS: &[Right] =
    &[WHETHER_SENT, right("SELECT", "{blocked_key}"), right("DELETE", "{blocked_key}"), RECORD_ACT];

/// What `blocked-keys dead-letter` needs: it moves the whole event.
pub(crate) const UNBLOCK_RIGHTS: &[Right] = &[
    right("SELECT", "{outbox}"),
    right("DELETE", "{outbox}"),
    right("SELECT", "{blocked_key}"),
    right("DELETE", "{blocked_key}"),
    of("SELECT", "{dead_letter}", &["id", "outbox_id"]),
    BURY,
    RECORD_ACT,
];

/// What `reap` needs.
pub(crate) const REAP_RIGHTS: &[Right] =
    &[of("SELECT", "{outbox}", &["ctid", "id", "sent_at"]), SETTLE, right("DELETE", "{outbox}")];

/// What the pages of failures tell a person to do in psql: end a hold whose topic works.
const BY_HAND_RIGHTS: &[Right] = &[right("DELETE", "{hold}")];

/// What an application does.
const WRITER_RIGHTS: &[Right] = &[of("INSERT", "{outbox}", OF_EVENT)];

impl Right {
    /// The GRANT that gives it to `role` (a name, not quoted yet).
    pub(crate) fn grant(&self, table: &TableName, role: &str) -> String {
        let privilege = match self.columns {
            [] => self.privilege.to_owned(),
            columns => format!("{} ({})", self.privilege, columns.join(", ")),
        };
        format!("GRANT {privilege} ON {} TO {};", table.render(self.on), quote_identifier(role))
    }

    /// Whether who has `other` has this one too.
    fn is_part_of(&self, other: &Right) -> bool {
        let columns = |column| other.columns.is_empty() || other.columns.contains(column);
        self.on == other.on
            && self.privilege == other.privilege
            && (other.columns.is_empty() || !self.columns.is_empty())
            && self.columns.iter().all(columns)
    }
}

/// All of these, each once, without those that are part of another one.
pub(crate) fn together(lists: &[&[Right]]) -> Vec<Right> {
    let all = lists.concat();
    let needed = |(at, right): (usize, &Right)| {
        let covered = |(other_at, other): (usize, &Right)| {
            right.is_part_of(other) && (!other.is_part_of(right) || other_at < at)
        };
        (!all.iter().enumerate().any(covered)).then_some(*right)
    };
    all.iter().enumerate().filter_map(needed).collect()
}

/// The GRANT of the right without which nothing in the schema can be named.
pub(crate) fn schema_grant(table: &TableName, role: &str) -> String {
    format!("GRANT USAGE ON SCHEMA {} TO {};", quote_identifier(table.schema()), quote_identifier(role))
}

fn grants(table: &TableName, role: &str, lists: &[&[Right]]) -> String {
    let mut sql = schema_grant(table, role) + "\n";
    for right in together(lists) {
        sql += &right.grant(table, role);
        sql.push('\n');
    }
    sql
}

/// The GRANT statements, one a line, for the role that the relay connects as.
pub fn relay_grants(table: &TableName, role: &str) -> String {
    grants(table, role, &[RELAY_RIGHTS])
}

/// The GRANT statements, one a line, for a role that works on dead letters, blocked keys, pauses and old rows, and looks.
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
        BY_HAND_RIGHTS,
    ];
    grants(table, role, &lists)
}

/// The GRANT statements, one a line, for a role that only looks.
pub(crate) fn monitor_grants(table: &TableName, role: &str) -> String {
    grants(table, role, &[CHECK_RIGHTS, STATUS_RIGHTS])
}

/// The GRANT statements, one a line, for a role that inserts events: with the helper crate, `outbox_enqueue` or a
/// plain INSERT. The identity column asks for no right on its sequence.
pub fn writer_grants(table: &TableName, role: &str) -> String {
    let (enqueue, role_name) = (table.enqueue(), quote_identifier(role));
    grants(table, role, &[WRITER_RIGHTS]) + &format!("GRANT EXECUTE ON FUNCTION {enqueue} TO {role_name};\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::postgres::table::unknown_placeholders;

    #[test]
    fn every_right_of_the_relay_names_a_relation_once() {
        for right in RELAY_RIGHTS {
            assert_eq!(unknown_placeholders(right.on), [""; 0]);
        }
        assert_eq!(together(&[RELAY_RIGHTS]), RELAY_RIGHTS);
    }

    #[test]
    fn a_right_that_is_part_of_another_one_is_left_out() {
        let (whole, part) = (right("SELECT", "{outbox}"), WHETHER_SENT);
        assert_eq!(together(&[&[part, whole], &[part, SETTLE, whole]]), [whole, SETTLE]);
        assert_eq!(together(&[&[part], &[right("SELECT", "{act}")]]), [part, right("SELECT", "{act}")]);
    }

    #[test]
    fn who_only_looks_reads_no_payload_and_changes_nothing() {
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
