//! Rejected events in both forms, dead letters and events that block their keys, and the history of what operators did with them.
//!
//! Triggers record what a statement does to dead letters, blocked keys and pauses.

use crate::columns::{BAD_HEADER, PayloadType};
use crate::connection::exec::{Param, ShortTransaction};
use crate::connection::pool::Database;
use crate::cycle::statements::script;
use crate::diagnose::status::{as_time, as_time_if_any};
use crate::sql::{Script, sql};
use crate::table::TableName;
use pg_outbox::topic::check_topic;
use relay::failure::PostgresFault;
use relay::reason::blocked_key_remedy;
use relay::topic::TopicRules;
use serde::Serialize;
use std::time::SystemTime;
use tokio_postgres::Row;
use uuid::Uuid;

/// Where a rejected event is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// It has left the outbox.
    #[default]
    DeadLetter,
    /// It is still in the outbox, and the events of its key wait.
    BlockedKey,
}

impl Form {
    /// The first value for dead letters, the second one for blocked keys.
    pub fn choose<T>(self, dead_letter: T, blocked_key: T) -> T {
        match self {
            Form::DeadLetter => dead_letter,
            Form::BlockedKey => blocked_key,
        }
    }
}

/// Conditions that must all match. Without any, every rejected event of this form is selected.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Selection {
    pub form: Form,
    pub topic: Option<String>,
    /// The Kafka key, `aggregate_id`.
    pub key: Option<String>,
    /// The keyword of the rejection.
    pub reason: Option<String>,
    /// Rejected longer ago than this, in seconds.
    pub older_than: Option<f64>,
    /// Rejected less long ago than this, in seconds.
    pub newer_than: Option<f64>,
    pub ids: Option<Vec<i64>>,
    pub event_ids: Option<Vec<Uuid>>,
    /// Only dead letters that were, or were not, requeued.
    pub requeued: Option<bool>,
}

impl Selection {
    /// Whether everything is selected. Skipping what was requeued already is not a choice: a requeue does so by default.
    pub fn is_all(&self) -> bool {
        let requeued = self.requeued.filter(|requeued| !requeued);
        *self == Selection { form: self.form, requeued, ..Selection::default() }
    }

    /// The parameters of `sql/operate/selected.sql`, and then these.
    fn params<'a>(&'a self, numbers: &'a [i64]) -> Vec<Param<'a>> {
        let mut params = Vec::from(params![
            self.topic => TEXT, self.key => TEXT, self.reason => TEXT, self.older_than => FLOAT8, self.newer_than => FLOAT8,
            self.ids => INT8_ARRAY, self.event_ids => UUID_ARRAY
        ]);
        if self.form == Form::DeadLetter {
            params.extend(params![self.requeued => BOOL]);
        }
        params.extend(numbers.iter().flat_map(|number| params![*number => INT8]));
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

/// What an action has changed, or would change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changed {
    /// How many rows the action was performed on.
    pub events: u64,
    /// How many blocks were only lifted, because their event is gone.
    pub lifted: u64,
    /// The last selected id, where the next batch continues; `None` if nothing was left.
    pub last: Option<i64>,
}

impl Changed {
    pub fn all(self) -> u64 {
        self.events + self.lifted
    }
}

/// What operators do with rejected events.
#[derive(Clone, Debug)]
pub enum Action {
    /// Inserts dead letters into the outbox again, with these changes of their headers.
    Requeue(HeaderChanges),
    Discard,
    /// Lifts blocks, so that relays retry their events.
    Retry,
    /// Moves the rejected events of blocks to the dead letters, and lifts the blocks.
    DeadLetter,
}

/// Changes to the headers of dead letters that are requeued. The dead letters themselves keep their headers. Headers that are
/// not a JSON object stay as they are.
#[derive(Clone, Debug)]
pub struct HeaderChanges {
    /// Whether to replace values that are neither strings nor base64 by their JSON text, and to drop null.
    stringify: bool,
    drop: Vec<String>,
    /// The headers to set, as a JSON object.
    set: String,
}

impl HeaderChanges {
    pub fn new(stringify: bool, drop: Vec<String>, set: Vec<(String, String)>) -> HeaderChanges {
        let set = set.into_iter().map(|(name, value)| (name, value.into())).collect();
        HeaderChanges { stringify, drop, set: serde_json::Value::Object(set).to_string() }
    }

    /// The parameters of `sql/part/changed_headers.sql`.
    fn params(&self) -> [Param<'_>; 4] {
        params![self.stringify => BOOL, self.drop => TEXT_ARRAY, self.set => TEXT, BAD_HEADER => TEXT]
    }
}

/// A rejected event, without its payload and headers, as the commands print it with `--json`.
#[derive(Clone, Debug, Serialize)]
pub struct RejectedEvent {
    /// Identifies it in commands. That of a blocked key is the id of the rejected row.
    pub id: i64,
    /// The rejected row of a dead letter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outbox_id: Option<i64>,
    pub event_id: Uuid,
    pub aggregate_type: String,
    pub aggregate_id: String,
    /// That of a dead letter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event_type: Option<String>,
    pub topic: String,
    /// A keyword to filter by.
    pub reason: String,
    pub error: String,
    #[serde(flatten)]
    pub details: Details,
}

/// What only one form has, and the time of the rejection.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum Details {
    DeadLetter {
        #[serde(serialize_with = "as_time")]
        rejected_at: SystemTime,
        #[serde(serialize_with = "as_time_if_any")]
        requeued_at: Option<SystemTime>,
        /// The length of the payload; `None` for a tombstone.
        payload_bytes: Option<i32>,
    },
    BlockedKey {
        #[serde(serialize_with = "as_time")]
        blocked_at: SystemTime,
        /// Whether the event is sent or no longer in the outbox: an operator has marked or deleted it manually.
        event_gone: bool,
        remedy: &'static str,
    },
}

impl RejectedEvent {
    fn new(row: &Row, form: Form) -> RejectedEvent {
        let is_dead_letter = form == Form::DeadLetter;
        RejectedEvent {
            id: row.get("id"),
            outbox_id: is_dead_letter.then(|| row.get("outbox_id")),
            event_id: row.get("event_id"),
            aggregate_type: row.get("aggregate_type"),
            aggregate_id: row.get("aggregate_id"),
            event_type: is_dead_letter.then(|| row.get("event_type")),
            topic: row.get("topic"),
            reason: row.get("reason"),
            error: row.get("error"),
            details: match form {
                Form::DeadLetter => Details::DeadLetter {
                    rejected_at: row.get("rejected_at"),
                    requeued_at: row.get("requeued_at"),
                    payload_bytes: row.get("octet_length"),
                },
                Form::BlockedKey => Details::BlockedKey {
                    blocked_at: row.get("blocked_at"),
                    event_gone: !row.get::<_, bool>("exists"),
                    remedy: blocked_key_remedy(row.get("reason")),
                },
            },
        }
    }
}

/// A dead letter with its payload and headers.
#[derive(Clone, Debug)]
pub struct WholeDeadLetter {
    pub event: RejectedEvent,
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

const COUNTING_LETTERS: &str = "counting the dead letters";

/// The selected rejected events of one outbox.
pub struct PostgresRejected {
    reading: ShortTransaction,
    operating: ShortTransaction,
    table: TableName,
    payload: PayloadType,
    topics: TopicRules,
    selection: Selection,
}

impl PostgresRejected {
    /// For this outbox. Connects on first use.
    pub fn new(
        database: Database,
        table: TableName,
        payload: PayloadType,
        topics: TopicRules,
        selection: Selection,
    ) -> PostgresRejected {
        let reading = ShortTransaction::reading(database.clone());
        let operating = ShortTransaction::operating(database);
        PostgresRejected { reading, operating, table, payload, topics, selection }
    }

    /// The newest with an id below `limit`, at most `rows`.
    pub async fn newest(&self, limit: i64, rows: i64) -> Result<Vec<RejectedEvent>, PostgresFault> {
        self.list(true, &[limit, rows]).await
    }

    /// The oldest with an id up to `up_to`, at most `rows`.
    pub async fn oldest(&self, up_to: i64, rows: i64) -> Result<Vec<RejectedEvent>, PostgresFault> {
        self.list(false, &[up_to, rows]).await
    }

    async fn list(&self, newest_first: bool, numbers: &[i64]) -> Result<Vec<RejectedEvent>, PostgresFault> {
        let form = self.selection.form;
        let text = form.choose(sql!("operate/dead_letters/list"), sql!("operate/blocked_keys/list"));
        let sql = self.script(text).when("newest_first", newest_first).render();
        let rows = self.reading.query(self.listing(), &sql, &self.selection.params(numbers)).await?;
        Ok(rows.iter().map(|row| RejectedEvent::new(row, form)).collect())
    }

    /// A dead letter with its payload and headers, whether or not it is selected.
    pub async fn whole(&self, id: i64) -> Result<Option<WholeDeadLetter>, PostgresFault> {
        let sql = self.script(sql!("operate/dead_letters/show")).render();
        let rows = self.reading.query("reading a dead letter", &sql, &params![id => INT8]).await?;
        Ok(rows.first().map(|row| WholeDeadLetter {
            event: RejectedEvent::new(row, Form::DeadLetter),
            payload: row.get(12),
            headers: row.get(13),
            created_at: row.get(14),
        }))
    }

    /// The highest id, selected or not; 0 if there is none.
    pub async fn highest_id(&self) -> Result<i64, PostgresFault> {
        let letters = "SELECT coalesce(max(id), 0) FROM :dead_letter";
        let keys = "SELECT coalesce(max(outbox_id), 0) FROM :blocked_key";
        let sql = self.script(self.selection.form.choose(letters, keys)).render();
        let rows = self.reading.query(self.listing(), &sql, &[]).await?;
        Ok(rows.first().map_or(0, |row| row.get(0)))
    }

    /// Counts what an action would change: those with an id up to `up_to`, at most `most`.
    pub async fn count(&self, up_to: i64, most: i64) -> Result<Changed, PostgresFault> {
        let form = self.selection.form;
        let letters = "SELECT count(*), 0::bigint FROM (SELECT FROM :dead_letter s WHERE :selected AND s.id <= $9::bigint LIMIT $10::bigint) AS fitting";
        let sql = self.script(form.choose(letters, sql!("operate/blocked_keys/count"))).render();
        let doing = form.choose(COUNTING_LETTERS, "counting the blocked keys");
        let rows = self.reading.query(doing, &sql, &self.selection.params(&[up_to, most])).await?;
        Ok(Changed { events: number(&rows, 0), lifted: number(&rows, 1), last: None })
    }

    /// Counts the dead letters, among the oldest `rows` of the batch, whose topic would be lost by a requeue, because the outbox
    /// no longer has the column `topic`.
    pub async fn losing_their_topic(&self, Batch { up_to, rows, .. }: Batch) -> Result<u64, PostgresFault> {
        if self.topics.column {
            return Ok(0);
        }
        let losing = "SELECT count(row_topic) FROM (SELECT row_topic FROM :dead_letter s WHERE :selected AND s.id <= $9::bigint
                      ORDER BY s.id LIMIT $10::bigint) AS oldest";
        let sql = self.script(losing).render();
        let rows = self.reading.query(COUNTING_LETTERS, &sql, &self.selection.params(&[up_to, rows])).await?;
        Ok(number(&rows, 0))
    }

    /// Counts the dead letters, among the oldest `rows` of the batch, whose events would be rejected again with these changes,
    /// reserved names of headers, and largest record.
    pub async fn rejected_again(
        &self,
        Batch { up_to, rows, .. }: Batch,
        changes: &HeaderChanges,
        reserved: &[&str],
        record_bytes_max: usize,
    ) -> Result<RejectedAgain, PostgresFault> {
        let numbers = [up_to, rows];
        let mut params = self.selection.params(&numbers);
        params.extend(changes.params());
        params.extend(params![reserved => TEXT_ARRAY]);
        let script = self.script(sql!("operate/dead_letters/rejected_again"));
        let sql = script.set("record_bytes_max", record_bytes_max.to_string()).render();
        let mut again = RejectedAgain::default();
        for row in self.reading.query("checking the dead letters", &sql, &params).await? {
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

    /// Performs the action on a batch. If the future is dropped, the outcome is unknown.
    pub async fn act(&self, action: &Action, batch: Batch) -> Result<Changed, PostgresFault> {
        let numbers = [batch.after, batch.up_to, batch.rows];
        let mut params = self.selection.params(&numbers);
        let (doing, script) = match action {
            Action::Requeue(changes) => {
                let changes_headers = changes.stringify || !changes.drop.is_empty() || changes.set != "{}";
                if changes_headers {
                    params.extend(changes.params());
                }
                let script = self
                    .script(sql!("operate/dead_letters/requeue"))
                    .set("payload_of_bytes", self.payload.decode_sql("payload"))
                    .when("changes_headers", changes_headers);
                ("requeueing dead letters", script)
            }
            Action::Discard => ("discarding dead letters", self.script(sql!("operate/dead_letters/discard"))),
            Action::Retry => ("unblocking keys", self.script(sql!("operate/blocked_keys/retry"))),
            Action::DeadLetter => {
                let script = self.script(sql!("operate/blocked_keys/dead_letter"));
                let script = script.set("payload_bytes", self.payload.bytes_sql("payload"));
                ("moving events to the dead letters", script)
            }
        };
        let rows = self.operating.query(doing, &script.render(), &params).await?;
        let last = rows.first().and_then(|row| row.get(2));
        Ok(Changed { events: number(&rows, 0), lifted: number(&rows, 1), last })
    }

    fn script(&self, text: &'static str) -> Script<'_> {
        let form = self.selection.form;
        let selected = Script::new(sql!("operate/selected"), &self.table)
            .set("id", form.choose("id", "outbox_id"))
            .set("at", form.choose("rejected_at", "blocked_at"))
            .when("is_dead_letter", form == Form::DeadLetter)
            .render();
        script(text, &self.table, &self.topics).set("selected", selected)
    }

    fn listing(&self) -> &'static str {
        self.selection.form.choose("reading the dead letters", "reading the blocked keys")
    }
}

/// A count in the first row.
fn number(rows: &[Row], column: usize) -> u64 {
    rows.first().map_or(0, |row| row.get::<_, i64>(column).unsigned_abs())
}

/// A recorded action on one event or one pause, as `dead-letters history --json` prints it.
#[derive(Clone, Debug, Serialize)]
pub struct Act {
    pub id: i64,
    #[serde(serialize_with = "as_time")]
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

/// The newest actions with an id below `before`, at most `rows`, optionally on one event.
pub async fn history(
    reading: &ShortTransaction,
    table: &TableName,
    event: Option<Uuid>,
    before: i64,
    rows: i64,
) -> Result<Vec<Act>, PostgresFault> {
    let params = params![before => INT8, event => UUID, rows => INT8];
    let sql = Script::new(sql!("operate/history"), table).render();
    let rows = reading.query("reading the history", &sql, &params).await?;
    Ok(rows.iter().map(Act::from).collect())
}
