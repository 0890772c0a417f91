//! The privileges of the relay, the operators and the writers, and those on the optional modules.
//!
//! The printed GRANT statements and the checks at start use the same lists, so they cannot differ.

use crate::columns::Column;
use crate::table::{Module, TableName, quote_identifier};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Privilege {
    /// The relation, as a placeholder of [`TableName::render`].
    pub(crate) on: &'static str,
    /// SELECT, INSERT, UPDATE or DELETE; EXECUTE for a function.
    pub(crate) kind: &'static str,
    /// The columns that it is limited to, separated by commas; empty for the whole table.
    pub(crate) columns: &'static str,
}

const fn privilege(kind: &'static str, on: &'static str) -> Privilege {
    Privilege { on, kind, columns: "" }
}

const fn on_columns(kind: &'static str, on: &'static str, columns: &'static str) -> Privilege {
    Privilege { on, kind, columns }
}

/// Every column without content of the event. The types determine its topic.
const ROW_COLUMNS: &str = "id, event_id, aggregate_type, aggregate_id, event_type, created_at, sent_at";
const DEAD_LETTER_COLUMNS: &str = "id, outbox_id, event_id, aggregate_type, aggregate_id, event_type, created_at, topic, reason, error, \
    rejected_at, requeued_at";

/// The columns that applications set; the others have defaults.
const EVENT_COLUMNS: &str = "event_id, aggregate_type, aggregate_id, event_type, payload, headers";
const REQUEUED_COLUMNS: &str =
    "event_id, aggregate_type, aggregate_id, event_type, payload, headers, created_at";

const ADD_DEAD_LETTER: Privilege = on_columns(
    "INSERT",
    "{dead_letter}",
    "outbox_id, event_id, aggregate_type, aggregate_id, event_type, payload, headers, created_at, topic, \
     row_topic, reason, error",
);
/// `SELECT ... FOR UPDATE` needs it too.
const MARK_SENT: Privilege = on_columns("UPDATE", "{outbox}", "sent_at");
/// For `SELECT ... FOR UPDATE`; no role changes the row.
const LOCK_REAPER: Privilege = on_columns("UPDATE", "{reaper}", "singleton");
const READ_SENT_AT: Privilege = on_columns("SELECT", "{outbox}", "id, event_id, sent_at");

/// For the checks at start, in every command.
pub(crate) const CHECK_PRIVILEGES: &[Privilege] = &[
    privilege("SELECT", "{lane}"),
    privilege("SELECT", "{hold_version}"),
    privilege("SELECT", "{migration}"),
];

/// For `run`, and for `status`, which operators run with the relay's configuration. The relay cannot read payloads or
/// headers of dead letters.
pub(crate) const RELAY_PRIVILEGES: &[Privilege] = &[
    privilege("SELECT", "{outbox}"),
    MARK_SENT,
    privilege("DELETE", "{outbox}"),
    privilege("SELECT", "{lane}"),
    on_columns("UPDATE", "{lane}", "lane"), // for SELECT ... FOR UPDATE; the relay changes no lane
    on_columns("SELECT", "{dead_letter}", DEAD_LETTER_COLUMNS),
    ADD_DEAD_LETTER,
    privilege("SELECT", "{hold}"),
    on_columns("INSERT", "{hold}", "topic, aggregate_id, reason, error, probe_at"),
    on_columns("UPDATE", "{hold}", "reason, error, probes, probe_at"),
    privilege("DELETE", "{hold}"),
    privilege("SELECT", "{blocked_key}"),
    on_columns(
        "INSERT",
        "{blocked_key}",
        "aggregate_type, aggregate_id, outbox_id, event_id, topic, reason, error",
    ),
    privilege("SELECT", "{pause}"),
    privilege("SELECT", "{hold_version}"), // the trigger function updates it with the privileges of its owner
    privilege("SELECT", "{migration}"),
    privilege("SELECT", "{reaper}"),
    LOCK_REAPER,
];

/// The columns that a relay replaces when it records its settings and its clusters. All except the first have defaults or are
/// NULL.
pub(crate) const SETTING_COLUMNS: &str = "topic_template, recorded_at, role, application, address, system_identifier, kafka_cluster_id, \
    identified_at, identified_by";

/// For recording the topic template and the clusters. The relay also starts without them, so the checks at start do not require them.
pub(crate) const RECORD_PRIVILEGES: &[Privilege] = &[
    privilege("SELECT", "{setting}"),
    on_columns("INSERT", "{setting}", "topic_template"),
    on_columns("UPDATE", "{setting}", SETTING_COLUMNS),
];

/// For `status`, in addition to [`CHECK_PRIVILEGES`]: no payload and no headers.
pub const STATUS_PRIVILEGES: &[Privilege] = &[
    on_columns("SELECT", "{outbox}", ROW_COLUMNS),
    privilege("SELECT", "{hold}"),
    privilege("SELECT", "{blocked_key}"),
    privilege("SELECT", "{pause}"),
    on_columns("SELECT", "{dead_letter}", DEAD_LETTER_COLUMNS),
];

/// For `dead-letters list` and `show`.
pub const LETTER_PRIVILEGES: &[Privilege] = &[privilege("SELECT", "{dead_letter}")];

/// For `dead-letters requeue`.
pub const REQUEUE_PRIVILEGES: &[Privilege] = &[
    privilege("SELECT", "{dead_letter}"),
    on_columns("UPDATE", "{dead_letter}", "requeued_at"),
    on_columns("INSERT", "{outbox}", REQUEUED_COLUMNS),
];

/// For `dead-letters discard`.
pub const DISCARD_PRIVILEGES: &[Privilege] =
    &[privilege("SELECT", "{dead_letter}"), privilege("DELETE", "{dead_letter}")];

/// For `pause`. Without role and time, so that no role can pause as another one.
pub const PAUSE_PRIVILEGES: &[Privilege] = &[
    privilege("SELECT", "{pause}"),
    on_columns("INSERT", "{pause}", "topic, aggregate_type, aggregate_id, reason"),
];

pub const RESUME_PRIVILEGES: &[Privilege] = &[privilege("SELECT", "{pause}"), privilege("DELETE", "{pause}")];

/// For `dead-letters history`.
pub const HISTORY_PRIVILEGES: &[Privilege] = &[privilege("SELECT", "{act}")];

/// For `blocked-keys list`.
pub const BLOCK_PRIVILEGES: &[Privilege] = &[READ_SENT_AT, privilege("SELECT", "{blocked_key}")];

/// For `blocked-keys retry`.
pub const RETRY_PRIVILEGES: &[Privilege] =
    &[READ_SENT_AT, privilege("SELECT", "{blocked_key}"), privilege("DELETE", "{blocked_key}")];

/// For `blocked-keys dead-letter`, which moves the whole event.
pub const UNBLOCK_PRIVILEGES: &[Privilege] = &[
    privilege("SELECT", "{outbox}"),
    privilege("DELETE", "{outbox}"),
    privilege("SELECT", "{blocked_key}"),
    privilege("DELETE", "{blocked_key}"),
    on_columns("SELECT", "{dead_letter}", "id, outbox_id"),
    ADD_DEAD_LETTER,
];

pub const REAP_PRIVILEGES: &[Privilege] = &[
    on_columns("SELECT", "{outbox}", "ctid, id, sent_at"),
    MARK_SENT,
    privilege("DELETE", "{outbox}"),
    privilege("SELECT", "{reaper}"),
    LOCK_REAPER,
];

/// For `verify`, which only reads.
pub const VERIFY_PRIVILEGES: &[Privilege] = &[
    privilege("SELECT", "{outbox}"),
    on_columns("SELECT", "{dead_letter}", "id, event_id"),
    privilege("SELECT", "{act}"),
];

/// For `replay`. Deleting no hold invalidates the low-water marks. The runbook also has operators delete a hold in psql.
pub const REPLAY_PRIVILEGES: &[Privilege] = &[
    privilege("SELECT", "{outbox}"),
    MARK_SENT,
    privilege("SELECT", "{hold}"),
    privilege("DELETE", "{hold}"),
    privilege("EXECUTE", "{record_act}"), // triggers record all other acts
];

pub const CONFIRM_PRIVILEGES: &[Privilege] = &[
    privilege("SELECT", "{setting}"),
    on_columns("UPDATE", "{setting}", "system_identifier, kafka_cluster_id, identified_at, identified_by"),
];

/// For applications. Object-relational mappers read the generated values with `INSERT ... RETURNING`. The other columns stay
/// unreadable. A chosen `id` would break the order, an event with `sent_at` would never be sent, and `created_at` is the
/// clock of the lag.
const WRITER_PRIVILEGES: &[Privilege] = &[
    on_columns("INSERT", "{outbox}", EVENT_COLUMNS),
    on_columns("SELECT", "{outbox}", "id, event_id"),
    privilege("EXECUTE", "{enqueue}"),
    privilege("EXECUTE", "{template}"),
];

/// The privileges on one module. No role can write its tables.
pub(super) struct ModulePrivileges {
    pub(super) table: &'static str,
    /// The services that use several logins.
    pub(super) services: &'static str,
    /// For the reaper and `reap`. They read no id, request or response.
    pub(super) reap: &'static [Privilege],
    /// For operators: no request, no response and no data of a phase.
    pub(super) operator: &'static [Privilege],
    /// For applications.
    pub(super) call: &'static [Privilege],
}

const INBOX: ModulePrivileges = ModulePrivileges {
    table: "{processed_message}",
    services: "{inbox_service}",
    reap: &[
        on_columns("SELECT", "{processed_message}", "processed_at"),
        privilege("EXECUTE", "{inbox_reap}"),
    ],
    operator: &[privilege("SELECT", "{processed_message}"), privilege("SELECT", "{inbox_service}")],
    call: &[privilege("EXECUTE", "{inbox_receive}"), privilege("EXECUTE", "{inbox_receive_many}")],
};

const IDEMPOTENCY: ModulePrivileges = ModulePrivileges {
    table: "{idempotency_key}",
    services: "{idempotency_service}",
    reap: &[
        on_columns("SELECT", "{idempotency_key}", "created_at, finished_at, recovery_point, locked_until"),
        privilege("EXECUTE", "{idempotency_reap}"),
        privilege("EXECUTE", "{idempotency_unfinished}"),
    ],
    operator: &[
        on_columns(
            "SELECT",
            "{idempotency_key}",
            "scope, key, owner, created_at, locked_at, locked_until, attempts, retry_at, recovery_point, \
             finished_at, status",
        ),
        privilege("SELECT", "{idempotency_service}"),
    ],
    call: &[
        privilege("EXECUTE", "{idempotency_fingerprint}"),
        privilege("EXECUTE", "{idempotency_begin}"),
        privilege("EXECUTE", "{idempotency_finish}"),
        privilege("EXECUTE", "{idempotency_reach}"),
        privilege("EXECUTE", "{idempotency_extend}"),
        privilege("EXECUTE", "{idempotency_release}"),
        privilege("EXECUTE", "{idempotency_abandoned}"),
    ],
};

const ONCE: ModulePrivileges = ModulePrivileges {
    table: "{once_key}",
    services: "{once_service}",
    reap: &[on_columns("SELECT", "{once_key}", "expires_at"), privilege("EXECUTE", "{once_reap}")],
    operator: &[privilege("SELECT", "{once_key}"), privilege("SELECT", "{once_service}")],
    call: &[privilege("EXECUTE", "{once_claim}")],
};

pub(super) fn privileges_of(module: Module) -> ModulePrivileges {
    match module {
        Module::Inbox => INBOX,
        Module::Idempotency => IDEMPOTENCY,
        Module::Once => ONCE,
    }
}

/// For `reap`, on all modules.
pub fn reap_privileges() -> Vec<Privilege> {
    Module::ALL.into_iter().flat_map(|module| privileges_of(module).reap).copied().collect()
}

impl Privilege {
    /// The GRANT statement for `role`, a name without quotes.
    pub(crate) fn grant(&self, table: &TableName, role: &str) -> String {
        let kind = if self.kind == "EXECUTE" { "FUNCTION " } else { "" };
        let columns = self.names().map(|name| match self.of_outbox(name) {
            Some(column) => table.column(column),
            None => name.to_owned(),
        });
        let privilege = match columns.collect::<Vec<_>>().join(", ") {
            columns if columns.is_empty() => self.kind.to_owned(),
            columns => format!("{} ({columns})", self.kind),
        };
        format!("GRANT {privilege} ON {kind}{} TO {};", table.render(self.on), quote_identifier(role))
    }

    /// The names of the columns in the system catalogs.
    pub(crate) fn column_names<'a>(&self, table: &'a TableName) -> Vec<&'a str> {
        let name = |name| self.of_outbox(name).map_or(name, |column| table.columns().name(column));
        self.names().map(name).collect()
    }

    fn names(&self) -> impl Iterator<Item = &'static str> + use<> {
        self.columns.split(", ").filter(|name| !name.is_empty())
    }

    /// The column of the outbox with this standard name. The columns of other tables are not renamed.
    fn of_outbox(&self, name: &str) -> Option<Column> {
        if self.on == "{outbox}" { Column::named(name) } else { None }
    }

    /// Whether `other` includes this one.
    fn is_part_of(&self, other: &Privilege) -> bool {
        let is_in_other = |name| other.names().any(|other| other == name);
        self.on == other.on
            && self.kind == other.kind
            && (other.columns.is_empty() || !self.columns.is_empty() && self.names().all(is_in_other))
    }
}

/// The union of these lists, without entries that another entry includes.
pub(crate) fn union(lists: &[&[Privilege]]) -> Vec<Privilege> {
    let mut union: Vec<Privilege> = Vec::new();
    for privilege in lists.concat() {
        if !union.iter().any(|other| privilege.is_part_of(other)) {
            union.retain(|other| !other.is_part_of(&privilege));
            union.push(privilege);
        }
    }
    union
}

/// The subset of these privileges that the optional column `topic` needs too, if it exists.
pub(crate) fn for_topic_column(privileges: &[Privilege]) -> Vec<Privilege> {
    let has_types = |privilege: &&Privilege| {
        privilege.on == "{outbox}" && privilege.names().any(|name| name == "aggregate_type")
    };
    let for_topic = |privilege: &Privilege| Privilege { columns: "topic", ..*privilege };
    privileges.iter().filter(has_types).map(for_topic).collect()
}

/// The GRANT statement for USAGE on the schema.
pub(crate) fn schema_grant(table: &TableName, role: &str) -> String {
    format!("GRANT USAGE ON SCHEMA {} TO {};", quote_identifier(table.schema()), quote_identifier(role))
}

pub(super) fn grants(table: &TableName, role: &str, lists: &[&[Privilege]]) -> String {
    let mut sql = schema_grant(table, role) + "\n";
    for privilege in union(lists) {
        sql += &privilege.grant(table, role);
        sql.push('\n');
    }
    sql
}

/// GRANT statements for the role that the relay connects as, one per line.
pub fn relay_grants(table: &TableName, role: &str) -> String {
    grants(table, role, &[RELAY_PRIVILEGES, RECORD_PRIVILEGES])
}

/// GRANT statements for operators, one per line.
pub fn operator_grants(table: &TableName, role: &str) -> String {
    let lists = [
        CHECK_PRIVILEGES,
        STATUS_PRIVILEGES,
        LETTER_PRIVILEGES,
        REQUEUE_PRIVILEGES,
        DISCARD_PRIVILEGES,
        HISTORY_PRIVILEGES,
        BLOCK_PRIVILEGES,
        RETRY_PRIVILEGES,
        UNBLOCK_PRIVILEGES,
        PAUSE_PRIVILEGES,
        RESUME_PRIVILEGES,
        REAP_PRIVILEGES,
        VERIFY_PRIVILEGES,
        REPLAY_PRIVILEGES,
        CONFIRM_PRIVILEGES,
    ];
    grants(table, role, &lists)
}

/// GRANT statements for monitoring, one per line.
pub(crate) fn monitor_grants(table: &TableName, role: &str) -> String {
    grants(table, role, &[CHECK_PRIVILEGES, STATUS_PRIVILEGES])
}

/// GRANT statements for applications, one per line. They allow the helper crate, `outbox_enqueue`, plain INSERTs, and
/// RETURNING of the two IDs. An identity column needs no privilege on its sequence.
pub fn writer_grants(table: &TableName, role: &str) -> String {
    grants(table, role, &[WRITER_PRIVILEGES])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::unknown_placeholders;

    #[test]
    fn privileges_of_the_relay_name_known_relations_and_do_not_overlap() {
        for privilege in RELAY_PRIVILEGES.iter().chain(RECORD_PRIVILEGES) {
            assert_eq!(unknown_placeholders(privilege.on), [""; 0]);
        }
        assert_eq!(union(&[RELAY_PRIVILEGES]), RELAY_PRIVILEGES);
    }

    #[test]
    fn union_leaves_out_included_privileges() {
        let (whole, part) = (privilege("SELECT", "{outbox}"), READ_SENT_AT);
        assert_eq!(union(&[&[part, whole], &[part, MARK_SENT, whole]]), [whole, MARK_SENT]);
        assert_eq!(union(&[&[part], &[privilege("SELECT", "{act}")]]), [part, privilege("SELECT", "{act}")]);
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
                .contains("GRANT EXECUTE ON FUNCTION \"app\".\"outbox_enqueue\" TO \"shop\";\n")
        );
    }

    #[test]
    fn privileges_name_known_relations_and_functions() {
        for module in Module::ALL {
            let privileges = privileges_of(module);
            let granted = [privileges.reap, privileges.operator, privileges.call].concat();
            let named = granted.into_iter().map(|privilege| privilege.on);
            for name in named.chain([privileges.table, privileges.services]) {
                assert_eq!(unknown_placeholders(name), [""; 0], "{name}");
            }
        }
    }

    #[test]
    fn reaper_and_operators_read_no_request_and_no_response() {
        for privilege in [IDEMPOTENCY.reap, IDEMPOTENCY.operator].concat() {
            let of_keys = privilege.on == IDEMPOTENCY.table;
            let whole = of_keys && privilege.columns.is_empty() && privilege.kind == "SELECT";
            assert!(!whole, "{privilege:?}");
            for secret in ["request", "body", "headers", "phases", "fingerprint", "token"] {
                assert!(!privilege.columns.contains(secret), "{privilege:?}");
            }
        }
    }
}
