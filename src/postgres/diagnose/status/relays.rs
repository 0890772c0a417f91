//! The connections of relays, and what they do.

use super::seconds;
use std::time::Duration;
use tokio_postgres::Row;

/// Those of the application name $1, and whoever holds lanes: the lock of SELECT FOR UPDATE on the table of lanes, which
/// nobody else takes. Of other roles' connections a role without pg_read_all_stats sees name and process, no more.
pub(super) const RELAYS: &str = "
SELECT a.pid, coalesce(a.application_name, ''), host(a.client_addr), a.state, a.wait_event_type, c.pid IS NOT NULL,
       (extract(epoch FROM clock_timestamp()) - extract(epoch FROM a.state_change))::float8,
       (extract(epoch FROM clock_timestamp()) - extract(epoch FROM a.xact_start))::float8
FROM pg_stat_activity AS a
LEFT JOIN (
    SELECT DISTINCT pid
    FROM pg_locks
    WHERE locktype = 'relation' AND mode = 'RowShareLock' AND relation = $2::text::regclass
      AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
) AS c ON c.pid = a.pid
WHERE a.datname = current_database() AND a.pid <> pg_backend_pid()
  AND coalesce(a.backend_type, 'client backend') = 'client backend'
  AND (a.application_name = $1::text OR c.pid IS NOT NULL)
ORDER BY a.application_name, a.client_addr, a.pid
LIMIT 200";

/// What a connection of a relay does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Doing {
    /// It holds lanes: it reads their rows, waits for Kafka, or settles.
    Publishing,
    /// It waits for somebody else's lock.
    WaitingForALock,
    /// It runs a statement: the scout, the reaper, a probe.
    Working,
    /// It has nothing to do.
    Idle,
    /// It is another role's, and ours may not see it.
    Hidden,
}

impl Doing {
    /// The word for it.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Doing::Publishing => "publishing",
            Doing::WaitingForALock => "waiting-for-a-lock",
            Doing::Working => "working",
            Doing::Idle => "idle",
            Doing::Hidden => "hidden",
        }
    }
}

/// One connection of a relay; a pooler's, if one stands in between.
#[derive(Clone, Debug)]
pub(crate) struct RelayConnection {
    /// The process of the server.
    pub pid: i32,
    /// What the client calls itself.
    pub application: String,
    /// Where it comes from; `None` for a Unix socket, or if it is hidden.
    pub address: Option<String>,
    /// What it does.
    pub doing: Doing,
    /// For how long.
    pub doing_for: Option<Duration>,
}

impl From<&Row> for RelayConnection {
    fn from(row: &Row) -> RelayConnection {
        let (state, wait, claims): (Option<&str>, Option<&str>, bool) = (row.get(3), row.get(4), row.get(5));
        let doing = doing(state, wait, claims);
        // A claim is as old as its transaction.
        let since = if doing == Doing::Publishing { row.get(7) } else { row.get(6) };
        RelayConnection {
            pid: row.get(0),
            application: row.get(1),
            address: row.get(2),
            doing,
            doing_for: seconds(since),
        }
    }
}

fn doing(state: Option<&str>, wait: Option<&str>, claims: bool) -> Doing {
    match state {
        _ if wait == Some("Lock") => Doing::WaitingForALock,
        _ if claims => Doing::Publishing,
        None => Doing::Hidden,
        Some("idle") => Doing::Idle,
        Some(_) => Doing::Working,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_is_publishing_whether_its_state_may_be_seen_or_not() {
        assert_eq!(doing(Some("idle in transaction"), Some("Client"), true), Doing::Publishing);
        assert_eq!(doing(None, None, true), Doing::Publishing);
        assert_eq!(doing(Some("active"), Some("Lock"), true), Doing::WaitingForALock);
        assert_eq!(doing(Some("active"), None, false), Doing::Working);
        assert_eq!(doing(Some("idle"), Some("Client"), false), Doing::Idle);
        assert_eq!(doing(None, None, false), Doing::Hidden);
    }
}
