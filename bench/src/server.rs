//! What the PostgreSQL server says about itself: its settings and distance, what it has written, and what each statement
//! costs.

use deadpool_postgres::Object;
use outbox_relay::postgres::connection::errors::fault;
use outbox_relay::postgres::connection::pool::Database;
use outbox_relay::postgres::cycle::statements::Statements;
use outbox_relay::postgres::table::quote_identifier;
use outbox_relay::relay::failure::PostgresFault;
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};
use tokio_postgres::error::SqlState;

/// The settings that determine how fast a server inserts and updates, including durability.
const SETTINGS: &str = "
SELECT name, current_setting(name)
FROM pg_settings
WHERE name IN ('shared_buffers', 'max_wal_size', 'checkpoint_timeout', 'wal_level', 'fsync', 'synchronous_commit',
               'full_page_writes', 'wal_compression', 'autovacuum')";

const SESSION: &str = "
SELECT current_setting('server_version'), pg_backend_pid(), coalesce(inet_client_port(), -1),
       pg_size_bytes(current_setting('max_wal_size'))";

const ROUND_TRIPS: usize = 50;

#[derive(Clone, Debug)]
pub struct Server {
    pub version: String,
    pub settings: BTreeMap<String, String>,
    /// The maximum WAL between two checkpoints, in bytes.
    pub max_wal_bytes: u64,
    /// The process that served our connection, in the server's own namespace.
    pub backend: u32,
    /// The port at our end of that connection. `None` for a Unix socket.
    pub client_port: Option<u16>,
    /// The median round trip of an empty statement.
    pub round_trip: Duration,
}

/// Queries the server. The connection stays in the pool, so that its backend can be found.
pub async fn ask(database: &Database) -> Result<Server, PostgresFault> {
    let asking = |error| fault("querying the server's settings", error);
    let client = database.get().await?;
    let session = client.query_typed_one(SESSION, &[]).await.map_err(asking)?;
    let settings = client.query_typed(SETTINGS, &[]).await.map_err(asking)?;
    let mut times = Vec::with_capacity(ROUND_TRIPS);
    for _ in 0..ROUND_TRIPS {
        let begun = Instant::now();
        client.batch_execute("SELECT 1").await.map_err(asking)?;
        times.push(begun.elapsed());
    }
    times.sort_unstable();
    let port: i32 = session.get(2);
    Ok(Server {
        version: session.get(0),
        settings: settings.iter().map(|row| (row.get(0), row.get(1))).collect(),
        max_wal_bytes: session.get::<_, i64>(3).unsigned_abs(),
        backend: session.get::<_, i32>(1).unsigned_abs(),
        client_port: u16::try_from(port).ok(),
        round_trip: times[ROUND_TRIPS / 2],
    })
}

/// Backends report their transactions with a delay of up to a second, which is why a measurement should be much longer.
const COUNTERS: &str = "
SELECT (pg_current_wal_lsn() - '0/0')::float8,
       (SELECT coalesce(sum(xact_commit + xact_rollback), 0)::float8 FROM pg_stat_database)";

const STATEMENTS_MAX: usize = 15;
/// How much of an unknown statement is shown.
const SHOWN: usize = 30;

const STATEMENTS_SCHEMA: &str = "
SELECT n.nspname::text FROM pg_extension AS e JOIN pg_namespace AS n ON n.oid = e.extnamespace
WHERE e.extname = 'pg_stat_statements'";

/// What the whole server has written, how many transactions it has ended, and what it has executed, up to one moment.
pub struct Counters {
    at: Instant,
    wal_bytes: f64,
    transactions: f64,
    /// By the text of the statement. Only those of this database, and empty without pg_stat_statements.
    statements: HashMap<String, Sum>,
}

#[derive(Clone, Copy, Default)]
struct Sum {
    calls: f64,
    ms: f64,
}

/// The server's activity between two moments, including that of other clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Activity {
    pub wal_bytes_per_row: f64,
    /// Committed and rolled back transactions per second, in all databases.
    pub transactions_per_second: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StatementCost {
    /// Its name in `migrate --print-queries`, or the beginning of its text. All SET commands are one statement.
    pub statement: String,
    pub calls_per_row: f64,
    /// The mean time of an execution in microseconds, without planning.
    pub us_per_call: f64,
    /// The share of the execution time of all statements of the database.
    pub share: f64,
}

impl Counters {
    pub async fn read(database: &Database) -> Result<Counters, PostgresFault> {
        let client = database.get().await?;
        let row = client.query_typed_one(COUNTERS, &[]).await;
        let row = row.map_err(|error| fault("reading the server's counters", error))?;
        Ok(Counters {
            at: Instant::now(),
            wal_bytes: row.get(0),
            transactions: row.get(1),
            statements: statements(&client).await?,
        })
    }

    /// The activity since earlier counters, during which this number of rows was written.
    pub fn activity(&self, earlier: &Counters, rows: u64) -> Activity {
        let seconds = self.at.saturating_duration_since(earlier.at).as_secs_f64();
        let per = |amount: f64, of: f64| if of > 0.0 { amount / of } else { 0.0 };
        Activity {
            wal_bytes_per_row: per(self.wal_bytes - earlier.wal_bytes, rows as f64),
            transactions_per_second: per(self.transactions - earlier.transactions, seconds),
        }
    }

    /// The cost of each statement since an earlier moment, during which this number of rows was written. The most expensive ones
    /// come first.
    pub fn costs(&self, earlier: &Counters, rows: u64, known: &Statements) -> Vec<StatementCost> {
        let names: HashMap<String, &str> =
            known.named().into_iter().map(|(name, text)| (normalized(&text), name)).collect();
        let mut sums: HashMap<String, Sum> = HashMap::new();
        for (text, sum) in &self.statements {
            let before = earlier.statements.get(text).copied().unwrap_or_default();
            let mut text = normalized(text);
            if text.starts_with("SET ") {
                text.truncate("SET".len()); // a transaction begins with about twelve of them
            }
            let name = names
                .get(&text)
                .map_or_else(|| text.chars().take(SHOWN).collect(), |name| (*name).to_owned());
            let entry = sums.entry(name).or_default();
            // Smaller values mean that the statistics were reset, or that the statement was evicted meanwhile.
            entry.calls += (sum.calls - before.calls).max(0.0);
            entry.ms += (sum.ms - before.ms).max(0.0);
        }
        let total: f64 = sums.values().map(|sum| sum.ms).sum();
        let executed = sums.into_iter().filter(|(_, sum)| sum.calls > 0.0 && total > 0.0);
        let mut costs: Vec<StatementCost> = executed
            .map(|(statement, sum)| StatementCost {
                statement,
                calls_per_row: sum.calls / rows.max(1) as f64,
                us_per_call: sum.ms * 1e3 / sum.calls,
                share: sum.ms / total,
            })
            .collect();
        costs.sort_by(|a, b| b.share.total_cmp(&a.share));
        costs.truncate(STATEMENTS_MAX);
        costs
    }
}

/// Reads pg_stat_statements. Without the extension, nothing is known.
async fn statements(client: &Object) -> Result<HashMap<String, Sum>, PostgresFault> {
    let reading = |error| fault("reading pg_stat_statements", error);
    let Some(schema) = client.query_typed_opt(STATEMENTS_SCHEMA, &[]).await.map_err(reading)? else {
        return Ok(HashMap::new());
    };
    let query = format!(
        "SELECT query, sum(calls)::float8, sum(total_exec_time)::float8 FROM {}.pg_stat_statements
         WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database()) AND query IS NOT NULL GROUP BY query",
        quote_identifier(schema.get(0))
    );
    match client.query_typed(&query, &[]).await {
        Ok(rows) => {
            let sums = rows.iter().map(|row| (row.get(0), Sum { calls: row.get(1), ms: row.get(2) }));
            Ok(sums.collect())
        }
        // The extension exists, but its library is not in shared_preload_libraries, its version is too old, or the role may not use it.
        Err(error)
            if matches!(
                error.code(),
                Some(
                    &SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE
                        | &SqlState::UNDEFINED_COLUMN
                        | &SqlState::INSUFFICIENT_PRIVILEGE
                )
            ) =>
        {
            Ok(HashMap::new())
        }
        Err(error) => Err(reading(error)),
    }
}

/// A statement in one line, with `?` for constants and parameters, since pg_stat_statements replaces constants with parameters
/// (PostgreSQL manual, "pg_stat_statements").
fn normalized(sql: &str) -> String {
    let mut words = String::new();
    let mut rest = sql.trim_end_matches(';');
    while let Some(first) = rest.chars().next() {
        let end = |part: &str, belongs: fn(char) -> bool| part.find(|c| !belongs(c)).unwrap_or(part.len());
        let number = |c: char| c.is_ascii_digit() || c == '.';
        let word = |c: char| c.is_alphanumeric() || c == '_';
        let length = match first {
            '\'' => rest[1..].find('\'').map_or(rest.len(), |end| end + 2),
            '$' => 1 + end(&rest[1..], |c| c.is_ascii_digit()),
            _ if first.is_ascii_digit() => end(rest, number),
            _ if word(first) => end(rest, word),
            _ if first.is_whitespace() => end(rest, char::is_whitespace),
            _ => first.len_utf8(),
        };
        let (token, after) = rest.split_at(length);
        let is_constant = matches!(first, '\'' | '$')
            || first.is_ascii_digit()
            || ["true", "false", "null", "epoch"].iter().any(|constant| token.eq_ignore_ascii_case(constant));
        if first.is_whitespace() {
            words.push(' ');
        } else if is_constant {
            // The sign of a constant belongs to it.
            words.truncate(words.strip_suffix('-').unwrap_or(&words).len());
            words.push('?');
        } else {
            words.push_str(token);
        }
        rest = after;
    }
    words.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use outbox_relay::config::OnSent;
    use outbox_relay::postgres::columns::PayloadType;
    use outbox_relay::postgres::table::TableName;
    use pg_outbox::topic::TopicTemplate;
    use std::time::Duration;

    #[test]
    fn activity_is_per_row_and_per_second() {
        let at = Instant::now();
        let counters = |at, wal_bytes, transactions| Counters {
            at,
            wal_bytes,
            transactions,
            statements: HashMap::new(),
        };
        let earlier = counters(at, 1_000.0, 10.0);
        let activity = counters(at + Duration::from_secs(2), 3_000.0, 50.0).activity(&earlier, 4);
        assert_eq!(activity, Activity { wal_bytes_per_row: 500.0, transactions_per_second: 20.0 });
        assert_eq!(earlier.activity(&earlier, 0), Activity::default());
    }

    #[test]
    fn constants_and_parameters_are_equal() {
        let ours = "SELECT extract(epoch FROM a) FROM t1\n  WHERE b = -1 AND c = 'x' AND d IS NULL AND e = $1::int8 LIMIT 5";
        let theirs = "SELECT extract($5 FROM a) FROM t1 WHERE b = $2 AND c = $3 AND d IS NULL AND e = $1::int8 LIMIT $4;";
        assert_eq!(normalized(ours), normalized(theirs));
        assert_ne!(normalized("SELECT t1.a"), normalized("SELECT t2.a"));
        assert_eq!(normalized("SELECT 'it"), "SELECT ?");
    }

    #[test]
    fn costs_are_those_of_the_measured_time_in_the_order_of_their_share() {
        let table: TableName = "app.outbox".parse().unwrap();
        let statements =
            Statements::new(&table, PayloadType::Json, OnSent::Mark, TopicTemplate::default(), 1_000_000);
        let (name, text) = statements.named().into_iter().next().unwrap();
        let counters =
            |statements| Counters { at: Instant::now(), wal_bytes: 0.0, transactions: 0.0, statements };
        let executed = |calls, ms| {
            counters(HashMap::from([
                (text.clone(), Sum { calls, ms }),
                ("INSERT INTO t VALUES ($1)".to_owned(), Sum { calls: 10.0, ms: 1.0 }),
                ("SELECT old".to_owned(), Sum { calls: 5.0, ms: 5.0 }),
                ("SET LOCAL a = $1".to_owned(), Sum { calls, ms: 0.0 }),
                ("SET LOCAL b = $1".to_owned(), Sum { calls, ms: 0.0 }),
            ]))
        };
        let mut earlier = executed(100.0, 50.0);
        earlier.statements.remove("INSERT INTO t VALUES ($1)");
        let costs = executed(140.0, 53.0).costs(&earlier, 20, &statements);
        let cost = |statement: &str, calls_per_row, us_per_call, share| StatementCost {
            statement: statement.to_owned(),
            calls_per_row,
            us_per_call,
            share,
        };
        let insert = cost("INSERT INTO t VALUES (?)", 0.5, 100.0, 0.25);
        assert_eq!(costs, [cost(name, 2.0, 75.0, 0.75), insert, cost("SET", 4.0, 0.0, 0.0)]);
        assert_eq!(counters(HashMap::new()).costs(&earlier, 20, &statements), []);
    }
}
