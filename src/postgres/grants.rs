//! The rights that the relay, the writers and the operators need, and no more.
//!
//! One list serves both the GRANT statements that are printed and the check at start, so they cannot differ.

use super::table::{TableName, quote_identifier};

/// One right on one relation of an outbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Right {
    /// The relation, as a placeholder of [`TableName::render`].
    pub(crate) on: &'static str,
    /// SELECT, INSERT, UPDATE or DELETE.
    pub(crate) privilege: &'static str,
    /// The only column it is needed on; `None` for the whole table.
    pub(crate) column: Option<&'static str>,
}

const fn right(privilege: &'static str, on: &'static str) -> Right {
    Right { on, privilege, column: None }
}

/// What the relay does to each relation.
pub(crate) const RELAY_RIGHTS: [Right; 16] = [
    right("SELECT", "{outbox}"),
    Right { on: "{outbox}", privilege: "UPDATE", column: Some("sent_at") },
    right("DELETE", "{outbox}"),
    right("SELECT", "{lane}"),
    right("UPDATE", "{lane}"), // what SELECT ... FOR UPDATE asks for; the relay changes no lane
    right("SELECT", "{dead_letter}"),
    right("INSERT", "{dead_letter}"),
    right("SELECT", "{hold}"),
    right("INSERT", "{hold}"),
    right("UPDATE", "{hold}"),
    right("DELETE", "{hold}"),
    right("SELECT", "{blocked_key}"),
    right("INSERT", "{blocked_key}"),
    right("SELECT", "{pause}"),
    right("SELECT", "{hold_version}"), // its trigger function counts with its owner's rights
    right("SELECT", "{migration}"),
];

const REQUEUED_AT: Right = Right { on: "{dead_letter}", privilege: "UPDATE", column: Some("requeued_at") };

/// What `dead-letters requeue` needs beyond the relay's rights.
pub(crate) const REQUEUE_RIGHTS: [Right; 3] =
    [right("INSERT", "{outbox}"), REQUEUED_AT, right("INSERT", "{act}")];

/// What `dead-letters discard` needs beyond the relay's rights.
pub(crate) const DISCARD_RIGHTS: [Right; 2] = [right("DELETE", "{dead_letter}"), right("INSERT", "{act}")];

/// What `blocked-keys retry` and `blocked-keys dead-letter` need beyond the relay's rights.
pub(crate) const UNBLOCK_RIGHTS: [Right; 2] = [right("DELETE", "{blocked_key}"), right("INSERT", "{act}")];

/// What `pause` needs beyond the relay's rights.
pub(crate) const PAUSE_RIGHTS: [Right; 2] = [right("INSERT", "{pause}"), right("INSERT", "{act}")];

/// What `resume` needs beyond the relay's rights.
pub(crate) const RESUME_RIGHTS: [Right; 2] = [right("DELETE", "{pause}"), right("INSERT", "{act}")];

/// What `dead-letters history` needs beyond the relay's rights.
pub(crate) const HISTORY_RIGHTS: [Right; 1] = [right("SELECT", "{act}")];

impl Right {
    /// The GRANT that gives it to `role` (a name, not quoted yet).
    pub(crate) fn grant(&self, table: &TableName, role: &str) -> String {
        let privilege = match self.column {
            Some(column) => format!("{} ({column})", self.privilege),
            None => self.privilege.to_owned(),
        };
        format!("GRANT {privilege} ON {} TO {};", table.render(self.on), quote_identifier(role))
    }
}

/// The GRANT of the right without which nothing in the schema can be named.
pub(crate) fn schema_grant(table: &TableName, role: &str) -> String {
    format!("GRANT USAGE ON SCHEMA {} TO {};", quote_identifier(table.schema()), quote_identifier(role))
}

/// The GRANT statements, one a line, for the role that the relay connects as.
pub fn relay_grants(table: &TableName, role: &str) -> String {
    let mut sql = schema_grant(table, role);
    for right in RELAY_RIGHTS {
        sql.push('\n');
        sql.push_str(&right.grant(table, role));
    }
    sql.push('\n');
    sql
}

/// The GRANT statements, one a line, for a role that works on dead letters and blocked keys, and that pauses and resumes:
/// what it needs beyond [`relay_grants`], all commands together.
pub fn operator_grants(table: &TableName, role: &str) -> String {
    let lists =
        [&REQUEUE_RIGHTS[..], &DISCARD_RIGHTS, &UNBLOCK_RIGHTS, &PAUSE_RIGHTS, &RESUME_RIGHTS, &HISTORY_RIGHTS];
    let mut grants: Vec<String> = Vec::new();
    for right in lists.into_iter().flatten() {
        let grant = right.grant(table, role);
        if !grants.contains(&grant) {
            grants.push(grant);
        }
    }
    grants.join("\n") + "\n"
}

/// The GRANT statements, one a line, for a role that inserts events: with the helper crate, `outbox_enqueue` or a
/// plain INSERT. The identity column asks for no right on its sequence.
pub fn writer_grants(table: &TableName, role: &str) -> String {
    let insert = right("INSERT", "{outbox}").grant(table, role);
    let role_name = quote_identifier(role);
    let enqueue = table.enqueue();
    format!("{}\n{insert}\nGRANT EXECUTE ON FUNCTION {enqueue} TO {role_name};\n", schema_grant(table, role))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::postgres::table::unknown_placeholders;

    #[test]
    fn every_right_names_a_relation_once() {
        for (at, right) in RELAY_RIGHTS.iter().enumerate() {
            assert_eq!(unknown_placeholders(right.on), [""; 0]);
            assert!(!RELAY_RIGHTS[..at].contains(right), "{right:?} twice");
        }
    }

    #[test]
    fn an_operator_needs_what_the_relay_does_not() {
        let table: TableName = "app.outbox".parse().unwrap();
        let (relay, operator) = (relay_grants(&table, "o"), operator_grants(&table, "o"));
        assert_eq!(operator.lines().count(), 8, "{operator}");
        for grant in operator.lines() {
            assert!(!relay.contains(grant), "{grant}");
            assert_eq!(operator.matches(grant).count(), 1, "{grant}");
        }
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
