//! Rejected events: dead letters, the events that block their keys, and the history of what operators did with them.
//!
//! Triggers record what a statement does to dead letters, blocked keys and pauses.

use crate::columns::PayloadType;
use crate::connection::exec::ShortTransaction;
use crate::connection::pool::Database;
use crate::cycle::statements::topic_sql;
use crate::schema::check::Facts;
use crate::sql::{Script, sql};
use crate::table::TableName;
use pg_outbox::topic::check_topic;
use relay::failure::PostgresFault;
use relay::topic::TopicRules;
use std::time::{Duration, SystemTime};
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};
use uuid::Uuid;

/// Conditions that must all match. Without any, everything is selected.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Selection {
    pub topic: Option<String>,
    /// The Kafka key, `aggregate_id`.
    pub key: Option<String>,
    /// The keyword of the rejection.
    pub reason: Option<String>,
    /// Rejected longer ago than this.
    pub older_than: Option<Seconds>,
    /// Rejected less long ago than this.
    pub newer_than: Option<Seconds>,
    pub ids: Option<Vec<i64>>,
    pub event_ids: Option<Vec<Uuid>>,
}

/// A duration in seconds, as a parameter of the statements.
pub(crate) type Seconds = f64;

impl Selection {
    pub fn seconds(duration: Duration) -> Seconds {
        duration.as_secs_f64()
    }

    /// Whether everything is selected.
    pub fn is_all(&self) -> bool {
        *self == Selection::default()
    }

    /// The parameters of `sql/operate/selected.sql`. Those of the statement follow.
    fn params(&self) -> Parameters<'_> {
        vec![
            (&self.topic, Type::TEXT),
            (&self.key, Type::TEXT),
            (&self.reason, Type::TEXT),
            (&self.older_than, Type::FLOAT8),
            (&self.newer_than, Type::FLOAT8),
            (&self.ids, Type::INT8_ARRAY),
            (&self.event_ids, Type::UUID_ARRAY),
        ]
    }
}

/// Selects dead letters.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    pub selection: Selection,
    /// Only those that were, or were not, requeued.
    pub requeued: Option<bool>,
}

impl Filter {
    fn params(&self) -> Parameters<'_> {
        let mut params = self.selection.params();
        params.push((&self.requeued, Type::BOOL));
        params
    }
}

/// One transaction of an action: the oldest rows with an id above `after` and up to `up_to`, at most `rows`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch {
    /// The last id of the previous batch.
    pub after: i64,
    /// The highest id when the action began.
    pub up_to: i64,
    pub rows: i64,
}

impl Batch {
    /// The parameters, which follow those of the selection.
    fn numbers(&self) -> [i64; 3] {
        [self.after, self.up_to, self.rows]
    }
}

/// The result of one batch of an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchResult {
    /// How many rows the action was performed on.
    pub done: u64,
    /// How many blocks were only lifted, because their event is gone.
    pub lifted: u64,
    /// The last selected id, where the next batch continues.
    pub last: i64,
}

/// Changes to the headers of dead letters that are requeued. The dead letters themselves keep their headers. Headers that are
/// not a JSON object stay as they are.
#[derive(Clone, Debug)]
pub struct HeaderChanges {
    /// Whether to replace values that are not strings by their JSON text, and to drop null.
    stringify: bool,
    /// The names of headers to drop.
    drop: Vec<String>,
    /// The headers to set, as a JSON object.
    set: String,
}

impl HeaderChanges {
    pub fn new(stringify: bool, drop: &[String], set: &[(String, String)]) -> HeaderChanges {
        let set = set.iter().map(|(name, value)| (name.clone(), value.clone().into()));
        let set = serde_json::Value::Object(set.collect()).to_string();
        HeaderChanges { stringify, drop: drop.to_vec(), set }
    }

    fn is_none(&self) -> bool {
        !self.stringify && self.drop.is_empty() && self.set == "{}"
    }

    /// The changed headers as an expression, whose parameters begin after `params`. Adds them.
    fn sql<'a>(&'a self, table: &TableName, params: &mut Parameters<'a>) -> String {
        let mut script = Script::new(sql!("operate/dead_letters/changed_headers"), table);
        for (name, number) in ["stringify", "drop", "set"].into_iter().zip(params.len() + 1..) {
            script = script.set(name, format!("${number}"));
        }
        params.push((&self.stringify, Type::BOOL));
        params.push((&self.drop, Type::TEXT_ARRAY));
        params.push((&self.set, Type::TEXT));
        script.render()
    }
}

/// A dead letter, without its payload and headers.
#[derive(Clone, Debug)]
pub struct DeadLetter {
    /// Identifies it in commands.
    pub id: i64,
    /// The id of the rejected row.
    pub outbox_id: i64,
    pub event_id: Uuid,
    pub aggregate_type: String,
    pub aggregate_id: String,
    pub event_type: String,
    pub topic: String,
    /// A keyword to filter by.
    pub reason: String,
    /// The full error message.
    pub error: String,
    pub rejected_at: SystemTime,
    /// When it was last requeued.
    pub requeued_at: Option<SystemTime>,
    /// The length of the payload; `None` for a tombstone.
    pub payload_bytes: Option<i32>,
}

from_row!(DeadLetter: id, outbox_id, event_id, aggregate_type, aggregate_id, event_type, topic, reason, error, rejected_at,
    requeued_at, payload_bytes);

/// A dead letter with its payload and headers.
#[derive(Clone, Debug)]
pub struct WholeDeadLetter {
    pub letter: DeadLetter,
    pub payload: Option<Vec<u8>>,
    /// As JSON.
    pub headers: Option<String>,
    /// RFC 3339 with microseconds, or an infinity.
    pub created_at: String,
}

/// How many of the selected dead letters would be rejected again, by the cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RejectedAgain {
    pub headers: u64,
    pub too_large: u64,
    /// Their topic has an invalid name, or is not allowed.
    pub topic: u64,
}

/// A key whose events wait.
#[derive(Clone, Debug)]
pub struct BlockedKey {
    /// The id of the rejected row, which identifies the block in commands.
    pub outbox_id: i64,
    pub event_id: Uuid,
    pub aggregate_type: String,
    pub aggregate_id: String,
    pub topic: String,
    /// A keyword to filter by.
    pub reason: String,
    /// The full error message.
    pub error: String,
    pub blocked_at: SystemTime,
    /// Whether the event is still in the outbox and unsent. If not, an operator has marked or deleted it manually.
    pub unsent: bool,
}

from_row!(BlockedKey: outbox_id, event_id, aggregate_type, aggregate_id, topic, reason, error, blocked_at, unsent);

/// The dead letters of one outbox.
pub struct PostgresDeadLetters {
    rejected: Rejected,
    topics: TopicRules,
}

const READING_LETTERS: &str = "reading the dead letters";
const COUNTING_LETTERS: &str = "counting the dead letters";

impl PostgresDeadLetters {
    /// For this outbox. Connects on first use.
    pub fn new(
        database: Database,
        table: TableName,
        payload: PayloadType,
        topics: TopicRules,
    ) -> PostgresDeadLetters {
        let rejected = Rejected::new(database, table, payload, topics.column);
        PostgresDeadLetters { rejected: Rejected { is_dead_letter: true, ..rejected }, topics }
    }

    /// The newest dead letters with an id below `before`, at most `rows`.
    pub async fn newest(
        &self,
        filter: &Filter,
        before: i64,
        rows: i64,
    ) -> Result<Vec<DeadLetter>, PostgresFault> {
        self.list(filter, true, &[before, rows]).await
    }

    /// The oldest dead letters with an id up to `up_to`, at most `rows`.
    pub async fn oldest(
        &self,
        filter: &Filter,
        up_to: i64,
        rows: i64,
    ) -> Result<Vec<DeadLetter>, PostgresFault> {
        self.list(filter, false, &[up_to, rows]).await
    }

    async fn list(
        &self,
        filter: &Filter,
        newest_first: bool,
        numbers: &[i64],
    ) -> Result<Vec<DeadLetter>, PostgresFault> {
        let script =
            self.rejected.script(sql!("operate/dead_letters/list")).when("newest_first", newest_first);
        let rows = self.rejected.read(READING_LETTERS, &script, filter.params(), numbers).await?;
        Ok(rows.iter().map(DeadLetter::from).collect())
    }

    /// A dead letter with its payload and headers.
    pub async fn whole(&self, id: i64) -> Result<Option<WholeDeadLetter>, PostgresFault> {
        let script = self.rejected.script(sql!("operate/dead_letters/show"));
        let rows = self.rejected.read("reading a dead letter", &script, Vec::new(), &[id]).await?;
        Ok(rows.first().map(|row| WholeDeadLetter {
            letter: row.into(),
            payload: row.get(12),
            headers: row.get(13),
            created_at: row.get(14),
        }))
    }

    /// The highest id; 0 if there is none.
    pub async fn highest_id(&self) -> Result<i64, PostgresFault> {
        self.rejected.highest_id(READING_LETTERS, "SELECT coalesce(max(id), 0) FROM {dead_letter}").await
    }

    /// Counts the dead letters with an id up to `up_to`, at most `most`.
    pub async fn count(&self, filter: &Filter, up_to: i64, most: i64) -> Result<u64, PostgresFault> {
        let script = self.rejected.script(
            "SELECT count(*) FROM (SELECT FROM :dead_letter s WHERE :selected AND s.id <= $9::bigint LIMIT $10::bigint) AS fitting",
        );
        Ok(count(&self.rejected.read(COUNTING_LETTERS, &script, filter.params(), &[up_to, most]).await?))
    }

    /// Counts the dead letters with an id up to `up_to` whose topic would be lost by a requeue, because the outbox no longer has
    /// the column `topic`.
    pub async fn losing_their_topic(&self, filter: &Filter, up_to: i64) -> Result<u64, PostgresFault> {
        if self.topics.column {
            return Ok(0);
        }
        let script = self.rejected.script(
            "SELECT count(*) FROM :dead_letter s WHERE :selected AND s.id <= $9::bigint AND s.row_topic IS NOT NULL",
        );
        Ok(count(&self.rejected.read(COUNTING_LETTERS, &script, filter.params(), &[up_to]).await?))
    }

    /// Counts the dead letters, among the oldest `most` with an id up to `up_to`, whose events would be rejected again with
    /// these changes, reserved names of headers, and largest record.
    pub async fn rejected_again(
        &self,
        filter: &Filter,
        (up_to, most): (i64, i64),
        changes: &HeaderChanges,
        reserved: &[&str],
        record_bytes_max: usize,
    ) -> Result<RejectedAgain, PostgresFault> {
        let (rejected, numbers) = (&self.rejected, [up_to, most]);
        let mut params = with(filter.params(), &numbers);
        let script = rejected
            .script(sql!("operate/dead_letters/rejected_again"))
            .set("topic", topic_sql(&self.topics))
            .set("headers", changes.sql(&rejected.table, &mut params))
            .set("record_bytes_max", record_bytes_max.to_string());
        params.push((&reserved, Type::TEXT_ARRAY));
        let mut again = RejectedAgain::default();
        for row in rejected.read("checking the dead letters", &script, params, &[]).await? {
            let (topic, is_named): (String, bool) = (row.get(0), row.get(1));
            let count = |column: usize| row.get::<_, i64>(column).unsigned_abs();
            again.headers += count(3);
            again.too_large += count(4);
            if check_topic(&topic).is_err() || is_named && !self.topics.allows(&topic) {
                again.topic += count(2);
            }
        }
        Ok(again)
    }

    /// Inserts a batch of dead letters into the outbox again, with these changes of their headers. Returns `None` if nothing was
    /// left. If the future is dropped, the outcome is unknown.
    pub async fn requeue(
        &self,
        filter: &Filter,
        batch: Batch,
        changes: &HeaderChanges,
    ) -> Result<Option<BatchResult>, PostgresFault> {
        let (rejected, numbers) = (&self.rejected, batch.numbers());
        let mut params = with(filter.params(), &numbers);
        let changes_headers = !changes.is_none();
        let headers = match changes_headers {
            true => changes.sql(&rejected.table, &mut params),
            false => "headers".to_owned(),
        };
        let script = rejected
            .script(sql!("operate/dead_letters/requeue"))
            .set("payload_of_bytes", rejected.payload.decode_sql("payload"))
            .set("headers", headers)
            .when("changes_headers", changes_headers);
        rejected.act("requeueing dead letters", &script, &params).await
    }

    /// Deletes a batch of dead letters.
    pub async fn discard(&self, filter: &Filter, batch: Batch) -> Result<Option<BatchResult>, PostgresFault> {
        let script = self.rejected.script(sql!("operate/dead_letters/discard"));
        let numbers = batch.numbers();
        self.rejected.act("discarding dead letters", &script, &with(filter.params(), &numbers)).await
    }
}

/// The blocked keys of one outbox.
pub struct PostgresBlockedKeys(Rejected);

const READING_KEYS: &str = "reading the blocked keys";

impl PostgresBlockedKeys {
    /// For this outbox. Connects on first use.
    pub fn new(database: Database, table: TableName, facts: &Facts) -> PostgresBlockedKeys {
        PostgresBlockedKeys(Rejected::new(database, table, facts.payload, facts.has_topic))
    }

    /// The newest blocks with an id below `before`, at most `rows`.
    pub async fn newest(
        &self,
        selection: &Selection,
        before: i64,
        rows: i64,
    ) -> Result<Vec<BlockedKey>, PostgresFault> {
        self.list(selection, true, &[before, rows]).await
    }

    /// The oldest blocks with an id up to `up_to`, at most `rows`.
    pub async fn oldest(
        &self,
        selection: &Selection,
        up_to: i64,
        rows: i64,
    ) -> Result<Vec<BlockedKey>, PostgresFault> {
        self.list(selection, false, &[up_to, rows]).await
    }

    async fn list(
        &self,
        selection: &Selection,
        newest_first: bool,
        numbers: &[i64],
    ) -> Result<Vec<BlockedKey>, PostgresFault> {
        let script = self.0.script(sql!("operate/blocked_keys/list")).when("newest_first", newest_first);
        let rows = self.0.read(READING_KEYS, &script, selection.params(), numbers).await?;
        Ok(rows.iter().map(BlockedKey::from).collect())
    }

    /// The highest id; 0 if there is none.
    pub async fn highest_id(&self) -> Result<i64, PostgresFault> {
        self.0.highest_id(READING_KEYS, "SELECT coalesce(max(outbox_id), 0) FROM {blocked_key}").await
    }

    /// Counts the blocks with an id up to `up_to`, at most `most`. Those without an event are in [`BatchResult::lifted`].
    pub async fn count(
        &self,
        selection: &Selection,
        up_to: i64,
        most: i64,
    ) -> Result<Option<BatchResult>, PostgresFault> {
        let script = self.0.script(sql!("operate/blocked_keys/count"));
        let doing = "counting the blocked keys";
        Ok(batch_result(&self.0.read(doing, &script, selection.params(), &[up_to, most]).await?))
    }

    /// Lifts a batch of blocks, so that relays retry their events. Returns `None` if nothing was left. If the future is
    /// dropped, the outcome is unknown.
    pub async fn retry(
        &self,
        selection: &Selection,
        batch: Batch,
    ) -> Result<Option<BatchResult>, PostgresFault> {
        let script = self.0.script(sql!("operate/blocked_keys/retry"));
        let numbers = batch.numbers();
        self.0.act("unblocking keys", &script, &with(selection.params(), &numbers)).await
    }

    /// Moves the rejected events of a batch of blocks to the dead letters, and lifts the blocks.
    pub async fn dead_letter(
        &self,
        selection: &Selection,
        batch: Batch,
    ) -> Result<Option<BatchResult>, PostgresFault> {
        let script = self.0.script(sql!("operate/blocked_keys/dead_letter"));
        let script = script.set("payload_bytes", self.0.payload.bytes_sql("payload"));
        let numbers = batch.numbers();
        self.0.act("moving events to the dead letters", &script, &with(selection.params(), &numbers)).await
    }
}

/// A recorded action on one event or one pause.
#[derive(Clone, Debug)]
pub struct Act {
    pub id: i64,
    pub at: SystemTime,
    /// The role that logged in; `None` for acts before the column existed.
    pub login: Option<String>,
    /// The role that performed it: the same one, unless `SET ROLE` has changed it.
    pub role: String,
    /// The `application_name` of the connection.
    pub application: String,
    /// The address of the client; `None` for a Unix socket.
    pub address: Option<String>,
    /// requeue, discard, retry, dead-letter, lift, pause or resume.
    pub act: String,
    /// The dead letter, if the event was or became one.
    pub dead_letter_id: Option<i64>,
    /// The row that Kafka rejected; `None` for a pause.
    pub outbox_id: Option<i64>,
    /// `None` for a pause.
    pub event_id: Option<Uuid>,
    /// The pause that began or ended.
    pub pause_id: Option<i64>,
    /// Of the event, or of the paused key.
    pub aggregate_type: Option<String>,
    /// The topic of the event, or the paused topic.
    pub topic: Option<String>,
    /// The reason of the rejection, or the operator's reason for the pause.
    pub reason: Option<String>,
}

from_row!(Act: id, at, login, role, application, address, act, dead_letter_id, outbox_id, event_id, pause_id, aggregate_type,
    topic, reason);

/// The history of one outbox.
pub struct PostgresActs {
    transaction: ShortTransaction,
    table: TableName,
}

impl PostgresActs {
    /// For this outbox. Connects on first use.
    pub fn new(database: Database, table: TableName) -> PostgresActs {
        PostgresActs { transaction: ShortTransaction::reading(database), table }
    }

    /// The newest actions with an id below `before`, at most `rows`, optionally on one event.
    pub async fn history(
        &self,
        event: Option<Uuid>,
        before: i64,
        rows: i64,
    ) -> Result<Vec<Act>, PostgresFault> {
        let params: Parameters<'_> = vec![(&before, Type::INT8), (&event, Type::UUID), (&rows, Type::INT8)];
        let sql = Script::new(sql!("operate/history"), &self.table).render();
        let rows = self.transaction.query("reading the history", &sql, &params).await?;
        Ok(rows.iter().map(Act::from).collect())
    }
}

/// Parameters with their types.
type Parameters<'a> = Vec<(&'a (dyn ToSql + Sync), Type)>;

/// The table of dead letters, or that of blocked keys.
struct Rejected {
    reading: ShortTransaction,
    operating: ShortTransaction,
    table: TableName,
    payload: PayloadType,
    has_topic: bool,
    is_dead_letter: bool,
}

impl Rejected {
    fn new(database: Database, table: TableName, payload: PayloadType, has_topic: bool) -> Rejected {
        let reading = ShortTransaction::reading(database.clone());
        let operating = ShortTransaction::operating(database);
        Rejected { reading, operating, table, payload, has_topic, is_dead_letter: false }
    }

    fn script(&self, text: &'static str) -> Script<'_> {
        let (id, at) = if self.is_dead_letter { ("id", "rejected_at") } else { ("outbox_id", "blocked_at") };
        let selected = Script::new(sql!("operate/selected"), &self.table).set("id", id).set("at", at);
        let selected = selected.when("is_dead_letter", self.is_dead_letter).render();
        Script::new(text, &self.table).set("selected", selected).when("has_topic", self.has_topic)
    }

    async fn read(
        &self,
        doing: &'static str,
        script: &Script<'_>,
        params: Parameters<'_>,
        numbers: &[i64],
    ) -> Result<Vec<Row>, PostgresFault> {
        self.reading.query(doing, &script.render(), &with(params, numbers)).await
    }

    /// Runs a batch of an action. The last parameters of the statement follow those of the batch.
    async fn act(
        &self,
        doing: &'static str,
        script: &Script<'_>,
        params: &Parameters<'_>,
    ) -> Result<Option<BatchResult>, PostgresFault> {
        Ok(batch_result(&self.operating.query(doing, &script.render(), params).await?))
    }

    /// The highest id; 0 if there is none.
    async fn highest_id(&self, doing: &'static str, sql: &str) -> Result<i64, PostgresFault> {
        let rows = self.reading.query(doing, &self.table.render(sql), &[]).await?;
        Ok(rows.first().map_or(0, |row| row.get(0)))
    }
}

fn with<'a>(mut params: Parameters<'a>, numbers: &'a [i64]) -> Parameters<'a> {
    params.extend(numbers.iter().map(|number| (number as &(dyn ToSql + Sync), Type::INT8)));
    params
}

/// From the row that a statement of an action returns. `None` if nothing was left to do.
fn batch_result(rows: &[Row]) -> Option<BatchResult> {
    let row = rows.first()?;
    let last: Option<i64> = row.get(2);
    Some(BatchResult {
        done: row.get::<_, i64>(0).unsigned_abs(),
        lifted: row.get::<_, i64>(1).unsigned_abs(),
        last: last?,
    })
}

fn count(rows: &[Row]) -> u64 {
    rows.first().map_or(0, |row| row.get::<_, i64>(0).unsigned_abs())
}
