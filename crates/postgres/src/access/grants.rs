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

/// A list of privileges, such as `privileges![SELECT on outbox, UPDATE("sent_at") on outbox]`.
macro_rules! privileges {
    ($($kind:ident $(($columns:expr))? on $on:ident),+ $(,)?) => {
        &[$(Privilege {
            on: concat!("{", stringify!($on), "}"),
            kind: stringify!($kind),
            columns: privileges!(@ $($columns)?),
        }),+]
    };
    (@) => { "" };
    (@ $columns:expr) => { $columns };
}

/// Every column without content of the event. The types determine its topic.
const ROW_COLUMNS: &str = "id, event_id, aggregate_type, aggregate_id, event_type, created_at, sent_at";
const DEAD_LETTER_COLUMNS: &str = "id, outbox_id, event_id, aggregate_type, aggregate_id, event_type, created_at, topic, reason, error, \
    rejected_at, requeued_at";
const NEW_DEAD_LETTER_COLUMNS: &str = "outbox_id, event_id, aggregate_type, aggregate_id, event_type, payload, headers, created_at, topic, \
    row_topic, reason, error";

/// The columns that applications set; the others have defaults.
const EVENT_COLUMNS: &str = "event_id, aggregate_type, aggregate_id, event_type, payload, headers";
const REQUEUED_COLUMNS: &str =
    "event_id, aggregate_type, aggregate_id, event_type, payload, headers, created_at";

/// The columns that a relay replaces when it records its settings and its clusters. All except the first have defaults or are
/// NULL.
pub(crate) const SETTING_COLUMNS: &str = "topic_template, recorded_at, role, application, address, system_identifier, kafka_cluster_id, \
    identified_at, identified_by";

/// For the checks at start, in every command.
pub(crate) const CHECK_PRIVILEGES: &[Privilege] =
    privileges![SELECT on lane, SELECT on hold_version, SELECT on migration];

/// For `run`, and for `status`, which operators run with the relay's configuration. The relay cannot read payloads or
/// headers of dead letters. `SELECT ... FOR UPDATE` needs UPDATE too: the relay changes no lane, and no role the row of the reaper.
pub(crate) const RELAY_PRIVILEGES: &[Privilege] = privileges![
    SELECT on outbox, UPDATE("sent_at") on outbox, DELETE on outbox,
    SELECT on lane, UPDATE("lane") on lane,
    SELECT(DEAD_LETTER_COLUMNS) on dead_letter, INSERT(NEW_DEAD_LETTER_COLUMNS) on dead_letter,
    SELECT on hold, INSERT("topic, aggregate_id, reason, error, probe_at") on hold,
    UPDATE("reason, error, probes, probe_at") on hold, DELETE on hold,
    SELECT on blocked_key,
    INSERT("aggregate_type, aggregate_id, outbox_id, event_id, topic, reason, error") on blocked_key,
    SELECT on pause,
    SELECT on hold_version, // the trigger function updates it with the privileges of its owner
    SELECT on migration,
    SELECT on reaper, UPDATE("singleton") on reaper,
];

/// For recording the topic template and the clusters. The relay also starts without them, so the checks at start do not require them.
pub(crate) const RECORD_PRIVILEGES: &[Privilege] =
    privileges![SELECT on setting, INSERT("topic_template") on setting, UPDATE(SETTING_COLUMNS) on setting];

/// For `status`, in addition to [`CHECK_PRIVILEGES`]: no payload and no headers.
pub const STATUS_PRIVILEGES: &[Privilege] = privileges![
    SELECT(ROW_COLUMNS) on outbox, SELECT on hold, SELECT on blocked_key, SELECT on pause,
    SELECT(DEAD_LETTER_COLUMNS) on dead_letter,
];

/// For `dead-letters list` and `show`.
pub const LETTER_PRIVILEGES: &[Privilege] = privileges![SELECT on dead_letter];

/// For `dead-letters requeue`.
pub const REQUEUE_PRIVILEGES: &[Privilege] = privileges![
    SELECT on dead_letter, UPDATE("requeued_at") on dead_letter, INSERT(REQUEUED_COLUMNS) on outbox,
];

/// For `dead-letters discard`.
pub const DISCARD_PRIVILEGES: &[Privilege] = privileges![SELECT on dead_letter, DELETE on dead_letter];

/// For `pause`. Without role and time, so that no role can pause as another one.
pub const PAUSE_PRIVILEGES: &[Privilege] =
    privileges![SELECT on pause, INSERT("topic, aggregate_type, aggregate_id, reason") on pause];

pub const RESUME_PRIVILEGES: &[Privilege] = privileges![SELECT on pause, DELETE on pause];

/// For `dead-letters history`.
pub const HISTORY_PRIVILEGES: &[Privilege] = privileges![SELECT on act];

/// For `blocked-keys list`.
pub const BLOCK_PRIVILEGES: &[Privilege] =
    privileges![SELECT("id, event_id, sent_at") on outbox, SELECT on blocked_key];

/// For `blocked-keys retry`.
pub const RETRY_PRIVILEGES: &[Privilege] =
    privileges![SELECT("id, event_id, sent_at") on outbox, SELECT on blocked_key, DELETE on blocked_key];

/// For `blocked-keys dead-letter`, which moves the whole event.
pub const UNBLOCK_PRIVILEGES: &[Privilege] = privileges![
    SELECT on outbox, DELETE on outbox, SELECT on blocked_key, DELETE on blocked_key,
    SELECT("id, outbox_id") on dead_letter, INSERT(NEW_DEAD_LETTER_COLUMNS) on dead_letter,
];

pub const REAP_PRIVILEGES: &[Privilege] = privileges![
    SELECT("ctid, id, sent_at") on outbox, UPDATE("sent_at") on outbox, DELETE on outbox,
    SELECT on reaper, UPDATE("singleton") on reaper,
];

/// For `verify`, which only reads.
pub const VERIFY_PRIVILEGES: &[Privilege] =
    privileges![SELECT on outbox, SELECT("id, event_id") on dead_letter, SELECT on act];

/// For `replay`. Deleting no hold invalidates the low-water marks. The runbook also has operators delete a hold in psql. Triggers
/// record all other acts.
pub const REPLAY_PRIVILEGES: &[Privilege] = privileges![
    SELECT on outbox, UPDATE("sent_at") on outbox, SELECT on hold, DELETE on hold, EXECUTE on record_act,
];

pub const CONFIRM_PRIVILEGES: &[Privilege] = privileges![
    SELECT on setting,
    UPDATE("system_identifier, kafka_cluster_id, identified_at, identified_by") on setting,
];

/// For applications. Object-relational mappers read the generated values with `INSERT ... RETURNING`. The other columns stay
/// unreadable. A chosen `id` would break the order, an event with `sent_at` would never be sent, and `created_at` is the
/// clock of the lag.
const WRITER_PRIVILEGES: &[Privilege] = privileges![
    INSERT(EVENT_COLUMNS) on outbox, SELECT("id, event_id") on outbox, EXECUTE on enqueue, EXECUTE on template,
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
    reap: privileges![SELECT("processed_at") on processed_message, EXECUTE on inbox_reap],
    operator: privileges![SELECT on processed_message, SELECT on inbox_service],
    call: privileges![EXECUTE on inbox_receive, EXECUTE on inbox_receive_many],
};

const IDEMPOTENCY: ModulePrivileges = ModulePrivileges {
    table: "{idempotency_key}",
    services: "{idempotency_service}",
    reap: privileges![
        SELECT("created_at, finished_at, recovery_point, locked_until") on idempotency_key,
        EXECUTE on idempotency_reap, EXECUTE on idempotency_unfinished,
    ],
    operator: privileges![
        SELECT("scope, key, owner, created_at, locked_at, locked_until, attempts, retry_at, recovery_point, \
                finished_at, status") on idempotency_key,
        SELECT on idempotency_service,
    ],
    call: privileges![
        EXECUTE on idempotency_fingerprint, EXECUTE on idempotency_begin, EXECUTE on idempotency_finish,
        EXECUTE on idempotency_reach, EXECUTE on idempotency_extend, EXECUTE on idempotency_release,
        EXECUTE on idempotency_abandoned,
    ],
};

const ONCE: ModulePrivileges = ModulePrivileges {
    table: "{once_key}",
    services: "{once_service}",
    reap: privileges![SELECT("expires_at") on once_key, EXECUTE on once_reap],
    operator: privileges![SELECT on once_key, SELECT on once_service],
    call: privileges![EXECUTE on once_claim],
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
        let [whole, part] = *privileges![SELECT on outbox, SELECT("id") on outbox];
        let [mark, act] = *privileges![UPDATE("sent_at") on outbox, SELECT on act];
        assert_eq!(union(&[&[part, whole], &[part, mark, whole]]), [whole, mark]);
        assert_eq!(union(&[&[part], &[act]]), [part, act]);
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
