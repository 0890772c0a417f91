//! Rows for the scratch outbox. The server itself generates them, because a load generator on the same machine should
//! need little CPU.
//!
//! Rows are numbered. Each number belongs to a *stream*: of `n` streams, stream `s` has the numbers `s`, `s + n`, `s +
//! 2n` and so on, and the keys whose numbers have the same remainder. Each stream can therefore have its own writer,
//! and each key has one writer, which commits its events in the order of their numbers.

use super::schema::PREFIX;
use deadpool_postgres::Object;
use outbox_relay::postgres::connection::connect::Database;
use outbox_relay::postgres::connection::fault::fault;
use outbox_relay::postgres::table::TableName;
use outbox_relay::relay::failure::PostgresFault;
use tokio_postgres::types::{ToSql, Type};

/// Digits of the number in a payload.
pub const NUMBER_DIGITS: usize = 12;
/// The size of the JSON object around number, key and note. A shorter payload is only the number, as text.
pub const OBJECT_BYTES_LEAST: usize =
    HEAD.len() + NUMBER_DIGITS + KEY.len() + KEY_DIGITS + NOTE.len() + END.len();
/// The shortest payload.
pub const BYTES_LEAST: usize = 10;

const KEY_DIGITS: usize = 10;
/// The beginning of a payload whose number is followed by more.
pub const HEAD: &str = r#"{"number":""#;
const KEY: &str = r#"","key":""#;
const NOTE: &str = r#"","note":""#;
const END: &str = r#""}"#;
const FILLER: &str = " is what the shop has noted of it; ";

/// The maximum number of rows and bytes in a transaction of a load, which bounds how long a cancelled one continues.
const FILL_ROWS_MAX: u64 = 100_000;
const FILL_BYTES_MAX: u64 = 64 << 20;

/// The shape of the rows.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Shape {
    /// How many rows.
    pub rows: u64,
    /// The number of different keys. Each row has a random one.
    pub keys: u64,
    /// The exact size of each payload, in bytes.
    pub payload_bytes: usize,
    /// The number of topics. A key always has the same one.
    pub topics: u64,
    /// The share of the rows that have the same key, from 0 to 1.
    pub hot_share: f64,
}

/// The preparation of a load that was possible, in addition to inserting it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prepared {
    /// Whether dead rows of earlier loads were removed and statistics were collected.
    pub vacuumed: bool,
    /// Whether the load was written to disk. The role may lack the privilege for a checkpoint.
    pub checkpointed: bool,
}

impl Shape {
    /// The aggregate type of a key.
    pub fn kind(&self, key: u64) -> String {
        if self.topics == 1 { "order".to_owned() } else { format!("order-{}", key % self.topics) }
    }

    /// The aggregate types, in the order of their topics.
    pub fn kinds(&self) -> Vec<String> {
        (0..self.topics).map(|key| self.kind(key)).collect()
    }

    /// The statement that inserts rows `$1` to `$2` of stream `$3` of `$4`.
    pub fn insert(&self, table: &TableName) -> String {
        let kind = if self.topics == 1 {
            "'order'".to_owned()
        } else {
            format!("'order-' || (r.key % {})", self.topics)
        };
        let any = format!("$3 + $4 * floor(random() * ({}::bigint / $4))::bigint", self.keys);
        let key = if self.hot_share > 0.0 {
            format!("CASE WHEN random() < {} THEN 0 ELSE {any} END", self.hot_share)
        } else {
            any
        };
        table.render(&format!(
            "
INSERT INTO {{outbox}} (aggregate_type, aggregate_id, event_type, payload)
SELECT {kind}, 'order-' || r.key, 'OrderPlaced', ({payload})::json
FROM (
    SELECT $3::bigint + $4::bigint * i AS number, {key} AS key
    FROM generate_series($1::bigint, $2::bigint) AS i
    OFFSET 0 -- so that the key is drawn once
) AS r",
            payload = self.payload(),
        ))
    }

    /// The payload in SQL: number and key for the comparison, and a note of the remaining length. About half of the
    /// note is random, like the values in real events. The rest repeats, like field names.
    fn payload(&self) -> String {
        let Some(note_bytes) = self.payload_bytes.checked_sub(OBJECT_BYTES_LEAST) else {
            return format!("'\"' || lpad(r.number::text, {}, '0') || '\"'", self.digits());
        };
        format!(
            "'{HEAD}' || lpad(r.number::text, {NUMBER_DIGITS}, '0') || '{KEY}' || lpad(r.key::text, {KEY_DIGITS}, '0') || \
             '{NOTE}' || left(repeat(gen_random_uuid()::text || '{FILLER}', {pieces}), {note_bytes}) || '{END}'",
            pieces = note_bytes / FILLER.len() + 1,
        )
    }

    /// A payload like those of the statement, for a row that is in no table.
    pub fn sample(&self, number: u64) -> String {
        let Some(note_bytes) = self.payload_bytes.checked_sub(OBJECT_BYTES_LEAST) else {
            return format!("\"{number:0width$}\"", width = self.digits());
        };
        let random = uuid::Builder::from_random_bytes(fastrand::u128(..).to_ne_bytes()).into_uuid();
        let mut note = format!("{random}{FILLER}").repeat(note_bytes / FILLER.len() + 1);
        note.truncate(note_bytes);
        let key = fastrand::u64(..self.keys);
        format!("{HEAD}{number:0NUMBER_DIGITS$}{KEY}{key:0KEY_DIGITS$}{NOTE}{note}{END}")
    }

    /// The digits of a number that is the whole payload.
    fn digits(&self) -> usize {
        self.payload_bytes.max(BYTES_LEAST) - 2
    }
}

/// Empties the outbox. No other client may use it meanwhile.
///
/// # Errors
///
/// If the server fails, or if another session locks the table for long.
pub async fn empty(database: &Database, table: &TableName) -> Result<(), PostgresFault> {
    const DOING: &str = "emptying the scratch outbox";
    assert_scratch(table);
    let client = database.get().await?;
    let sql = table.render(
        "BEGIN; SET LOCAL lock_timeout = '10s'; TRUNCATE {outbox} RESTART IDENTITY; DELETE FROM {dead_letter};
         DELETE FROM {hold}; DELETE FROM {blocked_key}; DELETE FROM {pause}; COMMIT",
    );
    finish(client, DOING, async |client| client.batch_execute(&sql).await).await
}

/// Inserts the rows of the shape as one stream, in large transactions.
///
/// # Errors
///
/// If the server fails. Committed rows stay.
pub async fn fill(database: &Database, table: &TableName, shape: &Shape) -> Result<(), PostgresFault> {
    const DOING: &str = "filling the scratch outbox";
    assert_scratch(table);
    let insert = shape.insert(table);
    let rows = (FILL_BYTES_MAX / shape.payload_bytes.max(1) as u64).clamp(1, FILL_ROWS_MAX);
    for first in (0..shape.rows).step_by(rows as usize) {
        let (first, last) = (first as i64, (first + rows).min(shape.rows) as i64 - 1);
        let numbers: [(&(dyn ToSql + Sync), Type); 4] =
            [(&first, Type::INT8), (&last, Type::INT8), (&0_i64, Type::INT8), (&1_i64, Type::INT8)];
        let client = database.get().await?;
        finish(client, DOING, async |client| {
            // The role may have its own statement timeout. Durability is not measured here.
            client
                .batch_execute("BEGIN; SET LOCAL statement_timeout = 0; SET LOCAL synchronous_commit = off")
                .await?;
            client.execute_typed(&insert, &numbers).await?;
            client.batch_execute("COMMIT").await
        })
        .await?;
    }
    Ok(())
}

/// Does what the server would have done after some time: vacuum, statistics and a checkpoint, as far as the role is
/// allowed to.
///
/// # Errors
///
/// If the connection fails.
pub async fn prepare(database: &Database, table: &TableName) -> Result<Prepared, PostgresFault> {
    let client = database.get().await?;
    let vacuumed = attempt(&client, &table.render("VACUUM (ANALYZE) {outbox}")).await?;
    let checkpointed = attempt(&client, "CHECKPOINT").await?;
    Ok(Prepared { vacuumed, checkpointed })
}

/// The number of unsent rows.
///
/// # Errors
///
/// If the server fails.
pub async fn unsent(database: &Database, table: &TableName) -> Result<i64, PostgresFault> {
    const DOING: &str = "counting what is unsent";
    let client = database.get().await?;
    let sql = table.render("SELECT count(*) FROM {outbox} WHERE sent_at IS NULL");
    let row = client.query_typed_one(&sql, &[]).await.map_err(|error| fault(DOING, error))?;
    Ok(row.get(0))
}

/// Prevents other tables from being filled or emptied.
fn assert_scratch(table: &TableName) {
    assert!(table.schema().starts_with(PREFIX), "{table} is not in a scratch schema");
}

/// Runs a statement that the server may refuse. Returns whether it succeeded.
async fn attempt(client: &Object, sql: &str) -> Result<bool, PostgresFault> {
    match client.batch_execute(sql).await {
        Ok(()) => Ok(true),
        Err(error) if error.code().is_some() => Ok(false),
        Err(error) => Err(fault("preparing the scratch outbox", error)),
    }
}

/// Runs statements on a connection. It returns to the pool only if they succeeded, because otherwise a transaction may
/// be open on it.
async fn finish(
    client: Object,
    doing: &'static str,
    work: impl AsyncFnOnce(&Object) -> Result<(), tokio_postgres::Error>,
) -> Result<(), PostgresFault> {
    let done = work(&client).await;
    if done.is_err() {
        drop(Object::take(client));
    }
    done.map_err(|error| fault(doing, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sample_has_exactly_the_requested_bytes() {
        for payload_bytes in [BYTES_LEAST, 11, OBJECT_BYTES_LEAST - 1, OBJECT_BYTES_LEAST, 60, 246, 100_000] {
            let shape = Shape { rows: 1, keys: 10, payload_bytes, topics: 1, hot_share: 0.0 };
            let sample = shape.sample(7);
            assert_eq!(sample.len(), payload_bytes, "{sample}");
            serde_json::from_str::<serde_json::Value>(&sample).unwrap();
        }
    }

    #[test]
    fn key_is_always_in_the_same_topic() {
        let shape = Shape { rows: 1, keys: 10, payload_bytes: 246, topics: 3, hot_share: 0.0 };
        assert_eq!(shape.kinds(), ["order-0", "order-1", "order-2"]);
        assert_eq!(shape.kind(7), "order-1");
        assert_eq!(Shape { topics: 1, ..shape }.kinds(), ["order"]);
    }
}
