//! The kind and the remedy of every SQLSTATE: all classes of PostgreSQL's appendix A, and the codes that differ from their
//! class or have their own remedy.

use relay::failure::FaultKind;

/// An SQLSTATE, or a class of them.
#[derive(Debug, PartialEq, Eq)]
pub struct Sqlstate {
    /// Five characters, or two for a class.
    pub state: &'static str,
    pub kind: FaultKind,
    /// What it means for the relay.
    pub means: &'static str,
    /// What to do: an imperative, or a sentence that begins with `NO_ACTION`. Without a full stop.
    pub remedy: &'static str,
}

/// The entry for this SQLSTATE, or else for its class.
pub fn entry(state: &str) -> Option<&'static Sqlstate> {
    let find = |wanted: &str| SQLSTATES.iter().find(|entry| entry.state == wanted);
    find(state).or_else(|| find(state.get(..2)?))
}

macro_rules! states {
    ($($state:literal $kind:ident, $means:literal, $remedy:expr;)+) => {
        &[$(Sqlstate { state: $state, kind: FaultKind::$kind, means: $means, remedy: $remedy }),+]
    };
}

const NOTHING: &str = "no action is needed unless this persists";
const LOCKED: &str = "no action is needed: the relay skips the locked rows. If this persists, find the session that \
     holds the locks in pg_locks";
const OBJECTS: &str = "check the relay's tables for triggers, rules, policies and views. To check for a failed \
migration, run `outbox-relay check-config --connect`";
const POOLER: &str = "use the pooler in transaction mode, and set prepared_statements = false if it does not support prepared \
     statements";
const REPORT: &str = "report a bug in outbox-relay, with the server log";
const PRIVILEGES: &str =
    "grant the missing privilege: `outbox-relay check-config --connect` shows the GRANT statement";
const CREDENTIALS: &str = "check the role, its password or client certificate, and pg_hba.conf. Files are reloaded \
     at each attempt, systemd credentials only at a restart";
const FIX_SERVER: &str = "check the server log and fix the cause";

/// Sorted by state. An entry for a code overrides the entry for its class.
pub const SQLSTATES: &[Sqlstate] = states! {
    "00" Refused, "success (not an error)", REPORT;
    "01" Refused, "a warning (not an error)", REPORT;
    "02" Refused, "no data", OBJECTS;
    "03" Refused, "the statement is incomplete", REPORT;
    "08" Unavailable, "the connection broke or was refused, by the server or a pooler",
        "check the server, the pooler and the network";
    "09" Refused, "a trigger action failed", OBJECTS;
    "0A" Unavailable, "a standby rejected a write, or a table changed under a prepared statement",
        "no action is needed: the relay prepares its statements again. If this persists, check whether the URL points to the \
         primary, and run RECONNECT on the console of PgBouncer if there is one";
    "0B" Refused, "a transaction could not start", REPORT;
    "0F" Refused, "an invalid locator", REPORT;
    "0L" Refused, "an invalid grantor", OBJECTS;
    "0P" Refused, "an invalid role", CREDENTIALS;
    "0Z" Refused, "diagnostics were requested in the wrong place", OBJECTS;
    "10" Refused, "an XQuery error", OBJECTS;
    "20" Refused, "no branch of a CASE matched", OBJECTS;
    "21" Refused, "a subquery returned more than one row", OBJECTS;
    "22" Data, "a value is out of range or invalid", OBJECTS;
    "23" Refused, "a constraint was violated, for example one added to the dead letters",
        "drop the constraint that was added to the relay's tables";
    "24" Unavailable, "the cursor is in an unexpected state", POOLER;
    "25" Refused, "the transaction is in an unexpected state", POOLER;
    "25006" Unavailable, "the server is read-only. After a failover, another host in the URL may be the primary",
        "no action is needed during a failover. Otherwise, point the URL to the primary and check \
         default_transaction_read_only";
    "25P02" Unavailable, "the transaction has already failed", NOTHING;
    "25P03" Unavailable, "idle_in_transaction_session_timeout ended a transaction of a relay that was frozen or disconnected: a \
         claim after takeover_timeout, another transaction after 5 s",
        "check why the relay's host froze or lost its connection. If a claim was ended and the host or the network is only slow, \
         increase [relay] takeover_timeout, which sets this timeout for claims";
    "25P04" Unavailable, "transaction_timeout ended a transaction of the relay",
        "check whether a pooler sets transaction_timeout: the relay sets it to 0 in its transactions";
    "26" Unavailable, "the prepared statement does not exist, for example behind a pooler", POOLER;
    "27" Refused, "a trigger changed the row that the statement was about to change", OBJECTS;
    "28" Unavailable, "the server rejected the login", CREDENTIALS;
    "28000" Unavailable, "the role is not allowed to log in, no pg_hba.conf line matches, or the client certificate is missing \
         or belongs to another role",
        "check the role, sslcert and sslkey if the server requires a certificate, sslmode if the error contains \"no \
         encryption\", and pg_hba.conf. Files are reloaded at each attempt, systemd credentials only at a restart";
    "28P01" Unavailable, "the password is wrong (a rotation may be in progress)", CREDENTIALS;
    "2B" Refused, "an object depends on a privilege", OBJECTS;
    "2D" Refused, "a transaction was ended in the wrong place", OBJECTS;
    "2F" Refused, "a function failed", OBJECTS;
    "34" Unavailable, "the cursor does not exist, for example behind a pooler", POOLER;
    "38" Refused, "an external function failed", OBJECTS;
    "39" Refused, "an external function or a trigger broke its protocol", OBJECTS;
    "3B" Refused, "an invalid savepoint", REPORT;
    "3D" Unavailable, "the database does not exist",
        "check the database name in [postgres] url, and whether the database is being restored";
    "3F" Refused, "the schema does not exist", "check [outbox] table and run `outbox-relay migrate`";
    "40" Contended, "the server rolled the transaction back because of a conflict", NOTHING;
    "40001" Contended, "a serialization failure", NOTHING;
    "40003" Unavailable, "it is unknown whether the statement completed", NOTHING;
    "40P01" Contended, "a deadlock with another session that locks outbox rows", LOCKED;
    "42" Refused, "the statement does not match the tables",
        "run `outbox-relay migrate`, then `outbox-relay check-config --connect`";
    "42501" Refused, "a privilege is missing, or row security hides rows", PRIVILEGES;
    "42P05" Unavailable, "the prepared statement already exists, for example behind a pooler", POOLER;
    "42P10" Refused, "a publication of the outbox has a row filter or a column list that does not fit its replica identity, or a \
         table of the relay lacks its primary key",
        "run `outbox-relay doctor`, which names the publication. If it names none, compare the primary keys with those of a new \
         outbox";
    "42P01" Refused, "a table does not exist", "check [outbox] table and run `outbox-relay migrate`";
    "44" Refused, "a view's CHECK OPTION is violated", OBJECTS;
    "53" Refused, "the server has insufficient resources", FIX_SERVER;
    "53100" Refused, "the server's disk is full",
        "free or add disk space: check for WAL retained by replication slots. Delete rows only afterwards, because that writes \
         WAL";
    "53200" Refused, "the server is out of memory", FIX_SERVER;
    "53300" Unavailable, "too many connections",
        "increase max_connections or the role's limit, or find out what uses the connections: a relay needs workers + 7";
    "53400" Refused, "a configured limit is reached", FIX_SERVER;
    "54" Data, "a server limit was exceeded, for example by the text of a jsonb payload",
        "find the row with a jsonb payload of hundreds of megabytes, and move it out of the outbox";
    "55" Refused, "an object is in the wrong state", FIX_SERVER;
    "55006" Contended, "an object is in use", LOCKED;
    "55P03" Contended, "another session held a lock longer than lock_timeout", LOCKED;
    "57" Unavailable, "an operator or the system intervened", NOTHING;
    "57014" TimedOut, "a statement took longer than 30 s or was canceled",
        "use pg_stat_activity to find out what is slowing down the server, and check whether the outbox has been vacuumed \
         recently";
    "57P01" Unavailable, "the server is shutting down, or the connection was terminated", NOTHING;
    "57P02" Unavailable, "another server process crashed", FIX_SERVER;
    "57P03" Unavailable, "the server is starting or recovering", NOTHING;
    "57P04" Unavailable, "the database was dropped",
        "check the database name in [postgres] url, and whether the database is being restored";
    "57P05" Unavailable, "the connection was idle longer than idle_session_timeout",
        "set idle_session_timeout to 0 for the relay's role";
    "58" Refused, "the server's operating system reported an I/O error", FIX_SERVER;
    "72" Contended, "the snapshot is too old", NOTHING;
    "F0" Refused, "a server configuration file is invalid", FIX_SERVER;
    "HV" Refused, "a foreign table failed: the outbox must be an ordinary table", OBJECTS;
    "P0" Refused, "PL/pgSQL raised an error, for example in a trigger", OBJECTS;
    "XX" Data, "an internal error",
        "check the server log. For damaged data or indexes (XX001, XX002), see amcheck and REINDEX in the PostgreSQL manual";
};

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// The classes of table A.1 in PostgreSQL 18, and class 72 of PostgreSQL 14 to 16.
    const CLASSES: &str = "00 01 02 03 08 09 0A 0B 0F 0L 0P 0Z 10 20 21 22 23 24 25 26 27 28 2B 2D 2F 34 38 39 3B 3D \
                           3F 40 42 44 53 54 55 57 58 72 F0 HV P0 XX";

    #[test]
    fn every_class_is_listed_and_every_state_once() {
        let mut listed = HashSet::new();
        for entry in SQLSTATES {
            assert!(listed.insert(entry.state), "{} twice", entry.state);
            assert!([2, 5].contains(&entry.state.len()), "{}", entry.state);
            assert!(CLASSES.contains(&entry.state[..2]), "{} has no class", entry.state);
            for text in [entry.means, entry.remedy] {
                assert!(!text.is_empty() && !text.ends_with('.'), "{}: {text}", entry.state);
            }
        }
        let missing: Vec<&str> = CLASSES.split(' ').filter(|class| !listed.contains(class)).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }

    #[test]
    fn a_code_overrides_its_class_and_unknown_states_have_no_entry() {
        let state = |state: &str| entry(state).map(|entry| entry.state);
        assert_eq!(state("25006"), Some("25006"));
        assert_eq!(state("25001"), Some("25"));
        assert_eq!(state("08P01"), Some("08"));
        assert_eq!([state("ZZ000"), state("2"), state("")], [None; 3]);
    }
}
