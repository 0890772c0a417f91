//! The statements of a running relay, complete for one outbox. `outbox-relay migrate --print-queries` prints them.

mod claim;
mod conditions;
mod print;
pub(crate) mod probes;
pub(crate) mod query;
pub(crate) mod reaper;
pub(crate) mod scout;
mod settle;

use crate::options::OnSent;
use crate::payload::PayloadType;
use crate::table::TableName;
use relay::topic::TopicRules;

pub(crate) use conditions::WaitConditions;
pub use print::print;
pub(crate) use query::Query;

use claim::Reads;
use conditions::Target;

/// SQL for the topic of a row `o`.
pub(crate) fn topic_sql(table: &TableName, topics: &TopicRules) -> String {
    Target { table, topics }.topic()
}

/// SQL for the topic of the row `o` of the table itself, in a statement that changes rows.
pub(crate) fn topic_of_target_sql(table: &TableName, topics: &TopicRules) -> String {
    Target { table, topics }.topic_of_target()
}

/// The age of the oldest unsent row, as the scout measures it.
pub(crate) fn oldest_sql(table: &TableName, topics: &TopicRules) -> String {
    str::to_owned(&scout::oldest(Target { table, topics }))
}

/// The statements of the cycle, the scout and the probes.
#[derive(Clone, Debug)]
pub struct Statements {
    /// The type of the payload column.
    pub payload: PayloadType,
    /// Whether settled rows are marked or deleted.
    pub on_sent: OnSent,
    /// The size of the largest record in bytes. The read leaves out the large values of larger rows.
    pub record_bytes_max: i32,
    table: TableName,
    topics: TopicRules,
    pub(crate) lock: Query,
    pub(crate) read: Query,
    pub(crate) read_first: Query,
    pub(crate) read_head: Query,
    pub(crate) read_row: Query,
    pub(crate) peek: Query,
    pub(crate) read_new: Query,
    pub(crate) read_new_if_free: Query,
    pub(crate) mark: Query,
    pub(crate) mark_around_locks: Query,
    pub(crate) delete: Query,
    pub(crate) delete_around_locks: Query,
    pub(crate) dead_letter: Query,
    pub(crate) hold: Query,
    pub(crate) block: Query,
    pub(crate) witnesses: Query,
    pub(crate) scan: Query,
    pub(crate) writers: Query,
    pub(crate) backlog: Query,
    pub(crate) oldest: Query,
    pub(crate) look: Query,
    pub(crate) glance: Query,
}

impl Statements {
    /// The statements for this outbox.
    pub fn new(
        table: &TableName,
        payload: PayloadType,
        on_sent: OnSent,
        topics: impl Into<TopicRules>,
        record_bytes_max: i32,
    ) -> Statements {
        let topics = topics.into();
        let target = Target { table, topics: &topics };
        let reads = Reads { target, payload, on_sent };
        Statements {
            payload,
            on_sent,
            record_bytes_max,
            table: table.clone(),
            lock: claim::LOCK.query(table),
            read: reads.pending(),
            read_first: reads.first_of_keys(),
            read_head: reads.head(),
            read_row: reads.row(),
            peek: reads.peek(),
            read_new: reads.new_rows(),
            read_new_if_free: reads.new_rows_if_free(),
            mark: settle::MARK.query(table),
            mark_around_locks: settle::MARK_AROUND_LOCKS.query(table),
            delete: settle::DELETE.query(table),
            delete_around_locks: settle::DELETE_AROUND_LOCKS.query(table),
            dead_letter: settle::dead_letter(target, payload),
            hold: settle::HOLD.query(table),
            block: settle::BLOCK.query(table),
            witnesses: probes::witnesses(target),
            scan: claim::scan(target),
            writers: scout::WRITERS.query(table),
            backlog: scout::BACKLOG.query(table),
            oldest: scout::oldest(target),
            look: scout::look(target),
            glance: scout::GLANCE.query(table),
            topics,
        }
    }

    /// The outbox table.
    pub(crate) fn table(&self) -> &TableName {
        &self.table
    }

    /// The same statements for a payload column of this type.
    pub(crate) fn with_payload(&self, payload: PayloadType) -> Statements {
        Statements::new(&self.table, payload, self.on_sent, &self.topics, self.record_bytes_max)
    }

    /// The claim's read, for tests of its plan.
    pub fn read(&self) -> &str {
        &self.read
    }

    /// The reads of a flow, for tests of their plans.
    pub fn reads_of_flows(&self) -> [&str; 3] {
        [&self.peek, &self.read_new, &self.read_new_if_free].map(|query| &**query)
    }

    /// The settlement that deletes, for tests of its plan.
    pub fn delete(&self) -> &str {
        &self.delete
    }

    /// The scout's scan, for tests of its plan.
    pub fn scan(&self) -> &str {
        &self.scan
    }

    /// The scout's measurements of the backlog, for tests of their plans.
    pub fn measurements(&self) -> [&str; 2] {
        [&self.backlog, &self.oldest].map(|query| &**query)
    }

    /// The name and the text of every statement of a running relay, to recognize them in the server's statistics.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, String)> {
        self.all().into_iter().map(|query| (query.name(), (*query).to_owned()))
    }

    /// Every statement of a running relay: those of the cycle in order, then those of the prober and the reaper.
    pub(crate) fn all(&self) -> Vec<Query> {
        let Statements {
            glance, look, scan, writers, backlog, oldest, lock, read, read_head, read_row, ..
        } = self;
        let Statements { peek, read_new, read_new_if_free, .. } = self;
        let Statements { mark, mark_around_locks, delete, delete_around_locks, .. } = self;
        let Statements { dead_letter, hold, block, witnesses, read_first, .. } = self;
        let reading = [
            glance,
            look,
            scan,
            writers,
            backlog,
            oldest,
            lock,
            read,
            peek,
            read_new,
            read_new_if_free,
            read_head,
            read_row,
        ];
        let settling = match self.on_sent {
            OnSent::Mark => [mark, mark_around_locks],
            OnSent::Delete => [delete, delete_around_locks],
        };
        let cycle = reading.into_iter().chain(settling);
        let cycle = cycle.chain([dead_letter, hold, block, witnesses, read_first]);
        let others = probes::HOLDS.iter().chain(&reaper::REAPER).map(|template| template.query(&self.table));
        cycle.cloned().chain(others).collect()
    }
}
