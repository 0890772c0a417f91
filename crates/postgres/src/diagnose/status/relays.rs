//! The connections of relays, and what they are doing.

use super::seconds;
use std::time::Duration;
use tokio_postgres::Row;

/// Connections with the application name $1, and those that have locked lanes: only relays run SELECT FOR UPDATE on the lane
/// table. Without pg_read_all_stats, a role can see only the name and process of other roles' connections.
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

/// What a relay's connection is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Doing {
    /// It has locked lanes: it reads, waits for Kafka, or settles.
    Publishing,
    /// It waits for another session's lock.
    WaitingForALock,
    /// It runs a statement of the scout, the reaper or a probe.
    Working,
    Idle,
    /// It belongs to another role, and this role cannot see what it does.
    Hidden,
}

impl Doing {
    pub fn word(self) -> &'static str {
        match self {
            Doing::Publishing => "publishing",
            Doing::WaitingForALock => "waiting-for-a-lock",
            Doing::Working => "working",
            Doing::Idle => "idle",
            Doing::Hidden => "hidden",
        }
    }
}

/// A relay's connection, or the pooler's if there is one.
#[derive(Clone, Debug)]
pub struct RelayConnection {
    /// The server process.
    pub pid: i32,
    pub application: String,
    /// `None` for a Unix socket, or if it is hidden.
    pub address: Option<String>,
    pub doing: Doing,
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
    fn a_claim_is_publishing_even_if_its_state_is_hidden() {
        assert_eq!(doing(Some("idle in transaction"), Some("Client"), true), Doing::Publishing);
        assert_eq!(doing(None, None, true), Doing::Publishing);
        assert_eq!(doing(Some("active"), Some("Lock"), true), Doing::WaitingForALock);
        assert_eq!(doing(Some("active"), None, false), Doing::Working);
        assert_eq!(doing(Some("idle"), Some("Client"), false), Doing::Idle);
        assert_eq!(doing(None, None, false), Doing::Hidden);
    }
}
