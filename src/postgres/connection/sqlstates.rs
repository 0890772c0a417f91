//! From an SQLSTATE to what it asks for: every class of PostgreSQL's appendix A, and the single codes that differ from
//! their class or deserve a remedy of their own.

use crate::relay::failure::FaultKind;

/// What one SQLSTATE, or all of a class, asks for.
#[derive(Debug, PartialEq, Eq)]
pub struct Sqlstate {
    /// Five characters, or the two of a whole class.
    pub state: &'static str,
    /// Decides what happens.
    pub kind: FaultKind,
    /// What it means here.
    pub means: &'static str,
    /// What a person can do, as an imperative without a full stop.
    pub remedy: &'static str,
}

/// The entry of this SQLSTATE, or of its class.
pub fn entry(state: &str) -> Option<&'static Sqlstate> {
    let find = |wanted: &str| SQLSTATES.iter().find(|entry| entry.state == wanted);
    find(state).or_else(|| find(state.get(..2)?))
}

const fn unavailable(state: &'static str, means: &'static str, remedy: &'static str) -> Sqlstate {
    Sqlstate { state, kind: FaultKind::Unavailable, means, remedy }
}

const fn contended(state: &'static str, means: &'static str, remedy: &'static str) -> Sqlstate {
    Sqlstate { state, kind: FaultKind::Contended, means, remedy }
}

const fn refused(state: &'static str, means: &'static str, remedy: &'static str) -> Sqlstate {
    Sqlstate { state, kind: FaultKind::Refused, means, remedy }
}

const fn data(state: &'static str, means: &'static str, remedy: &'static str) -> Sqlstate {
    Sqlstate { state, kind: FaultKind::Data, means, remedy }
}

const fn timed_out(state: &'static str, means: &'static str, remedy: &'static str) -> Sqlstate {
    Sqlstate { state, kind: FaultKind::TimedOut, means, remedy }
}

const NOTHING: &str = "nothing, unless it lasts";
const LOCKED: &str =
    "nothing: the relay goes round the locked rows; if it lasts, look in pg_locks for who holds them";
const OBJECTS: &str = "look for a trigger, rule, policy or view on the relay's tables, and for a failed migration: `outbox-relay check-config --connect`";
const POOLER: &str =
    "let the pooler work in transaction mode, and set prepared_statements = false if it forgets them";
const REPORT: &str = "report it, with the server's log";
const RIGHTS: &str =
    "grant what is missing: `outbox-relay check-config --connect` shows the GRANT to execute";
const CREDENTIALS: &str = "look at the role, its password or client certificate, and pg_hba.conf; files are read again at each attempt, credentials of systemd at a restart";
const MEND_SERVER: &str = "look at the server's log, and mend what it names";

/// By state; an entry of five characters goes before the one of its class.
pub const SQLSTATES: &[Sqlstate] = &[
    refused("00", "success, which is no error", REPORT),
    refused("01", "a warning, which is no error", REPORT),
    refused("02", "no data", OBJECTS),
    refused("03", "the statement is not complete yet", REPORT),
    unavailable(
        "08",
        "the connection broke or was refused, by the server or a pooler",
        "look at the server, the pooler and the network between",
    ),
    refused("09", "an action of a trigger failed", OBJECTS),
    unavailable(
        "0A",
        "a standby refuses to write, or a table was changed under a prepared statement",
        "nothing: the relay connects again; if it lasts, look whether the URL leads to the primary",
    ),
    refused("0B", "a transaction could not begin", REPORT),
    refused("0F", "a locator is wrong", REPORT),
    refused("0L", "the grantor is wrong", OBJECTS),
    refused("0P", "the role is wrong", CREDENTIALS),
    refused("0Z", "diagnostics were asked for in the wrong place", OBJECTS),
    refused("10", "an XQuery error", OBJECTS),
    refused("20", "a CASE of a function fits nothing", OBJECTS),
    refused("21", "a subquery gave more than one row", OBJECTS),
    data("22", "a value is out of range or not valid", OBJECTS),
    refused(
        "23",
        "a constraint is violated, for instance one that was added to the dead letters",
        "drop the constraint that was added to the relay's tables",
    ),
    unavailable("24", "the cursor is not in the state that the relay left it in", POOLER),
    refused("25", "the transaction is not in the state that the relay left it in", POOLER),
    unavailable(
        "25006",
        "read-only: after a failover another host of the URL may be the primary",
        "nothing during a failover; else lead the URL to the primary, and look at default_transaction_read_only",
    ),
    unavailable("25P02", "the transaction has failed before", NOTHING),
    unavailable(
        "25P03",
        "the relay was frozen or cut off longer than takeover_timeout",
        "look for what paused the relay's host or its network; if it is only slow, raise takeover_timeout",
    ),
    unavailable(
        "25P04",
        "a claim was open longer than transaction_timeout allows",
        "look who sets transaction_timeout: the relay sets it to 0 for its claims",
    ),
    unavailable("26", "the prepared statement is gone, for instance behind a pooler", POOLER),
    refused("27", "a trigger changes the row that is being changed", OBJECTS),
    unavailable("28", "the server does not let the relay in", CREDENTIALS),
    unavailable(
        "28000",
        "the role may not log in, no line of pg_hba.conf fits, or a client certificate is missing or of another role",
        "look at the role, at sslcert and sslkey if the server wants a certificate, at sslmode if it says \"no encryption\", \
         and at pg_hba.conf; files are read again at each attempt, credentials of systemd at a restart",
    ),
    unavailable("28P01", "the password is wrong: it may be rotated just now", CREDENTIALS),
    refused("2B", "something depends on a privilege", OBJECTS),
    refused("2D", "a transaction was ended in the wrong place", OBJECTS),
    refused("2F", "a function failed", OBJECTS),
    unavailable("34", "the cursor is gone, for instance behind a pooler", POOLER),
    refused("38", "an external function failed", OBJECTS),
    refused("39", "an external function or a trigger broke its protocol", OBJECTS),
    refused("3B", "a savepoint is wrong", REPORT),
    unavailable(
        "3D",
        "the database does not exist",
        "look at the database's name in [postgres] url, and whether it is being restored",
    ),
    refused("3F", "the schema does not exist", "look at [outbox] table and run `outbox-relay migrate`"),
    contended("40", "the server rolled the transaction back because of others", NOTHING),
    contended("40001", "a serialization failure", NOTHING),
    unavailable("40003", "whether the statement was completed is not known", NOTHING),
    contended("40P01", "a deadlock with somebody who locks rows of the outbox", LOCKED),
    refused(
        "42",
        "the statement does not fit the tables",
        "run `outbox-relay migrate`, then `outbox-relay check-config --connect`",
    ),
    refused("42501", "a right is missing, or row security hides rows", RIGHTS),
    unavailable("42P05", "the prepared statement is there already, for instance behind a pooler", POOLER),
    refused("42P01", "a table does not exist", "look at [outbox] table and run `outbox-relay migrate`"),
    refused("44", "a view's CHECK OPTION is violated", OBJECTS),
    refused("53", "the server lacks resources", MEND_SERVER),
    refused(
        "53100",
        "the server's disk is full",
        "free or add disk space: look for WAL that a replication slot keeps, and run `outbox-relay reap`",
    ),
    refused("53200", "the server is out of memory", MEND_SERVER),
    unavailable(
        "53300",
        "too many connections",
        "raise max_connections or the role's limit, or look who uses them: a relay needs workers + 5",
    ),
    refused("53400", "a configured limit is reached", MEND_SERVER),
    data(
        "54",
        "a limit of the server's is exceeded, for instance by the text of a jsonb payload",
        "look for a jsonb payload of hundreds of megabytes in the outbox, and move its row away",
    ),
    refused("55", "an object is not in the state that is needed", MEND_SERVER),
    contended("55006", "an object is in use", LOCKED),
    contended("55P03", "somebody else held a lock longer than lock_timeout", LOCKED),
    unavailable("57", "an operator or the system intervened", NOTHING),
    timed_out(
        "57014",
        "a statement took longer than 30 s, or somebody cancelled it",
        "look in pg_stat_activity for what makes the server slow, and whether the outbox was vacuumed",
    ),
    unavailable("57P01", "the server is shutting down, or somebody ended the connection", NOTHING),
    unavailable("57P02", "another process of the server crashed", MEND_SERVER),
    unavailable("57P03", "the server is starting, or recovering", NOTHING),
    unavailable(
        "57P04",
        "the database was dropped",
        "look at the database's name in [postgres] url, and whether it is being restored",
    ),
    unavailable(
        "57P05",
        "the connection was idle longer than idle_session_timeout",
        "set idle_session_timeout to 0 for the relay's role",
    ),
    refused("58", "the system under the server failed: input and output, or files", MEND_SERVER),
    contended("72", "the snapshot is too old", NOTHING),
    refused("F0", "a configuration file of the server is wrong", MEND_SERVER),
    refused("HV", "a foreign table failed: the outbox has to be an ordinary one", OBJECTS),
    refused("P0", "PL/pgSQL raised an error, for instance in a trigger", OBJECTS),
    data(
        "XX",
        "an internal error",
        "look at the server's log; for damaged data or indexes (XX001, XX002) see the manual about amcheck and REINDEX",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// Table A.1 of PostgreSQL 18, and class 72, which PostgreSQL 14 to 16 have.
    const CLASSES: &str = "00 01 02 03 08 09 0A 0B 0F 0L 0P 0Z 10 20 21 22 23 24 25 26 27 28 2B 2D 2F 34 38 39 3B 3D \
                           3F 40 42 44 53 54 55 57 58 72 F0 HV P0 XX";

    #[test]
    fn every_class_of_the_appendix_is_listed_and_every_state_once() {
        let mut listed = HashSet::new();
        for entry in SQLSTATES {
            assert!(listed.insert(entry.state), "{} twice", entry.state);
            assert!([2, 5].contains(&entry.state.len()), "{}", entry.state);
            assert!(CLASSES.contains(&entry.state[..2]), "{} is of no class", entry.state);
            for text in [entry.means, entry.remedy] {
                assert!(!text.is_empty() && !text.ends_with('.'), "{}: {text}", entry.state);
            }
        }
        let forgotten: Vec<&str> = CLASSES.split(' ').filter(|class| !listed.contains(class)).collect();
        assert!(forgotten.is_empty(), "{forgotten:?}");
    }

    #[test]
    fn a_single_code_goes_before_its_class_and_what_is_not_listed_has_no_entry() {
        let state = |state: &str| entry(state).map(|entry| entry.state);
        assert_eq!(state("25006"), Some("25006"));
        assert_eq!(state("25001"), Some("25"));
        assert_eq!(state("08P01"), Some("08"));
        assert_eq!([state("ZZ000"), state("2"), state("")], [None; 3]);
    }
}
