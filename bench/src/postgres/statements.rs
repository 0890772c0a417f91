//! What each statement costs, from pg_stat_statements.

use outbox_relay::postgres::connection::connect::Database;
use outbox_relay::postgres::connection::fault::fault;
use outbox_relay::postgres::cycle::statements::Statements;
use outbox_relay::postgres::table::quote_identifier;
use outbox_relay::relay::failure::PostgresFault;
use serde::Serialize;
use std::collections::HashMap;
use tokio_postgres::error::SqlState;

/// How many statements are reported.
const MOST: usize = 15;
/// How much of an unknown statement is shown.
const SHOWN: usize = 30;

const SCHEMA: &str = "
SELECT n.nspname::text FROM pg_extension AS e JOIN pg_namespace AS n ON n.oid = e.extnamespace
WHERE e.extname = 'pg_stat_statements'";

/// The cost of one statement.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StatementCost {
    /// Its name in `migrate --print-queries`, or the beginning of its text. All SET commands are one statement.
    pub statement: String,
    /// Executions per row.
    pub calls_per_row: f64,
    /// The mean time of an execution in microseconds, without planning.
    pub us_per_call: f64,
    /// The share of the execution time of all statements of the database.
    pub share: f64,
}

/// Calls and execution time of each statement of the database up to one moment.
#[derive(Clone, Debug, Default)]
pub struct Executed(HashMap<String, Sum>);

#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    calls: f64,
    ms: f64,
}

/// Reads pg_stat_statements. Without the extension, nothing is known.
///
/// # Errors
///
/// If the server fails.
pub async fn read(database: &Database) -> Result<Executed, PostgresFault> {
    let reading = |error| fault("reading pg_stat_statements", error);
    let client = database.get().await?;
    let Some(schema) = client.query_typed_opt(SCHEMA, &[]).await.map_err(reading)? else {
        return Ok(Executed::default());
    };
    let query = format!(
        "SELECT query, sum(calls)::float8, sum(total_exec_time)::float8 FROM {}.pg_stat_statements
         WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database()) AND query IS NOT NULL GROUP BY query",
        quote_identifier(schema.get(0))
    );
    match client.query_typed(&query, &[]).await {
        Ok(rows) => {
            let sums = rows.iter().map(|row| (row.get(0), Sum { calls: row.get(1), ms: row.get(2) }));
            Ok(Executed(sums.collect()))
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
            Ok(Executed::default())
        }
        Err(error) => Err(reading(error)),
    }
}

impl Executed {
    /// The cost of each statement since an earlier moment, during which this number of rows was written. The most expensive ones
    /// come first.
    pub fn since(&self, earlier: &Executed, rows: u64, statements: &Statements) -> Vec<StatementCost> {
        let names: HashMap<String, &str> =
            statements.named().map(|(name, text)| (normalized(&text), name)).collect();
        let mut sums: HashMap<String, Sum> = HashMap::new();
        for (text, sum) in &self.0 {
            let before = earlier.0.get(text).copied().unwrap_or_default();
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
        costs.truncate(MOST);
        costs
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
    use outbox_relay::postgres::payload::PayloadType;
    use outbox_relay::postgres::table::TableName;
    use pg_outbox::topic::TopicTemplate;

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
        let (name, text) = statements.named().next().unwrap();
        let executed = |calls, ms| {
            Executed(HashMap::from([
                (text.clone(), Sum { calls, ms }),
                ("INSERT INTO t VALUES ($1)".to_owned(), Sum { calls: 10.0, ms: 1.0 }),
                ("SELECT old".to_owned(), Sum { calls: 5.0, ms: 5.0 }),
                ("SET LOCAL a = $1".to_owned(), Sum { calls, ms: 0.0 }),
                ("SET LOCAL b = $1".to_owned(), Sum { calls, ms: 0.0 }),
            ]))
        };
        let mut earlier = executed(100.0, 50.0);
        earlier.0.remove("INSERT INTO t VALUES ($1)");
        let costs = executed(140.0, 53.0).since(&earlier, 20, &statements);
        let cost = |statement: &str, calls_per_row, us_per_call, share| StatementCost {
            statement: statement.to_owned(),
            calls_per_row,
            us_per_call,
            share,
        };
        let insert = cost("INSERT INTO t VALUES (?)", 0.5, 100.0, 0.25);
        assert_eq!(costs, [cost(name, 2.0, 75.0, 0.75), insert, cost("SET", 4.0, 0.0, 0.0)]);
        assert_eq!(Executed::default().since(&earlier, 20, &statements), []);
    }
}
