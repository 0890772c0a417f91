//! Conditions on an unsent row `o` of the outbox, which several statements share.
//!
//! Lanes are compared with `= ANY (ARRAY[lane])`. After a plain `=`, the planner knows that an order by lane and id is an
//! order by id, and could walk the primary key, past every sent row. It did so if the table was empty when its statistics
//! were collected. Without the equality, the primary key would need a sort, which the settings of transactions disable.

use crate::table::{Column, TableName, quote_literal};
use pg_outbox::topic::TopicPart;
use relay::topic::TopicRules;

/// An outbox, and the topics of its rows.
#[derive(Clone, Copy)]
pub(super) struct Target<'a> {
    pub(super) table: &'a TableName,
    pub(super) topics: &'a TopicRules,
}

impl Target<'_> {
    /// The topic of the row.
    pub(super) fn topic(self) -> String {
        self.topic_of("o")
    }

    /// The rows of the outbox, followed by an alias.
    pub(super) fn rows(self) -> String {
        self.table.rows(self.topics.column)
    }

    /// The topic of the row `o` of the table itself, for statements that change rows.
    pub(super) fn topic_of_target(self) -> String {
        self.topic_with(|column| self.table.column_of("o", column))
    }

    /// The topic of the row of this alias.
    fn topic_of(self, row: &str) -> String {
        self.topic_with(|column| format!("{row}.{column}"))
    }

    /// The topic of a row with these columns. It is never NULL.
    ///
    /// Values that the planner cannot compare directly with a column are cut, because the server would read all of a large
    /// one. What is cut is too long for a topic anyway.
    fn topic_with(self, column: impl Fn(Column) -> String) -> String {
        let template = &self.topics.template;
        if self.topics.is_constant() {
            return quote_literal(template.prefix());
        }
        let part = |part: &TopicPart| match part {
            TopicPart::Text(text) => quote_literal(text),
            TopicPart::EventType => format!("left({}, 300)", column(Column::EventType)),
            _ => format!("left({}, 300)", column(Column::AggregateType)),
        };
        let rendered = template.parts().iter().map(part).collect::<Vec<_>>().join(" || ");
        match self.topics.column {
            true => format!("coalesce(left({}, 300), {rendered})", column(Column::Topic)),
            false => rendered,
        }
    }

    /// The version of the set of holds, blocked keys and pauses, and the basis of the marks. The basis changes when a hold,
    /// block or pause ends, and when the table gets another file: by TRUNCATE, a rewrite, or another table of the same name.
    /// OFFSET 0 makes the server compute it once.
    pub(super) fn versions(self) -> String {
        let (outbox, hold_version) = (quote_literal(&self.table.quoted()), self.table.hold_version());
        format!(
            "(
    SELECT version, (removals << 32) | pg_relation_filenode({outbox}::regclass)::bigint AS basis
    FROM {hold_version} WHERE singleton OFFSET 0
) v"
        )
    }

    /// The same, and whether all transactions of this parameter, the excepted ones, are still in progress.
    pub(super) fn versions_and_open(self, excepted: &str) -> String {
        let (versions, open) = (self.versions(), are_open(excepted));
        format!("(\n    SELECT v.version, v.basis, {open} AS are_open FROM {versions} OFFSET 0\n) v")
    }

    /// The same as [`Target::versions`], but with a version that no set of holds has if an excepted transaction has ended.
    pub(super) fn versions_if_open(self, excepted: &str) -> String {
        let (versions, open) = (self.versions(), are_open(excepted));
        format!(
            "(\n    SELECT CASE WHEN {open} THEN v.version ELSE -1 END AS version, v.basis FROM {versions} OFFSET 0\n) v"
        )
    }

    /// The same as these versions, but with a NULL version if anything is held, blocked or paused.
    pub(super) fn versions_if_free(self, versions: &str) -> String {
        let (hold, blocked_key, pause) = (self.table.hold(), self.table.blocked_key(), self.table.pause());
        format!(
            "(
    SELECT CASE WHEN NOT EXISTS (SELECT FROM {hold}) AND NOT EXISTS (SELECT FROM {blocked_key})
                    AND NOT EXISTS (SELECT FROM {pause}) THEN v.version END AS version,
           v.basis
    FROM {versions} OFFSET 0
) v"
        )
    }

    /// The unsent rows of a lane that may be published: above the mark, and not held, blocked or paused. The mark applies
    /// only under the basis `$3` for which it was raised, as of the same snapshot. If an excepted transaction has ended, the
    /// rows begin at the floor.
    ///
    /// If everything is paused, the lower bound is above every row, so that the server neither reads the index nor checks a
    /// pause for each row.
    pub(super) fn pending(self, floor: &str) -> String {
        let pause = self.table.pause();
        let (not_held, not_blocked) = (self.not_held(), self.not_blocked());
        format!(
            "(hashtext(o.aggregate_id) & 63) = ANY (ARRAY[l.lane])
    AND o.sent_at IS NULL
    AND o.id > CASE WHEN EXISTS (SELECT FROM {pause} WHERE topic IS NULL AND aggregate_id IS NULL) THEN 9223372036854775807
                    WHEN v.basis = $3::bigint AND v.are_open THEN l.low
                    WHEN v.basis = $3::bigint THEN least(l.low, {floor}::bigint)
                    ELSE -9223372036854775808 END
    AND {not_held}
    AND {not_blocked}"
        )
    }

    /// The unsent rows with the topic and the key of the row `l.witness`, unless they are paused or blocked. A hold does not
    /// exclude them, because they are used to probe it.
    pub(super) fn of_key(self) -> String {
        let rows = self.rows();
        let (not_paused, not_blocked) = (self.not_paused(), self.not_blocked());
        let same_key = if self.topics.is_constant() {
            format!("o.aggregate_id = (SELECT w.aggregate_id FROM {rows} w WHERE w.id = l.witness)")
        } else {
            let (of_row, of_witness) = if self.topics.is_by_aggregate_type() {
                ("o.aggregate_type".to_owned(), "w.aggregate_type".to_owned())
            } else {
                (self.topic(), self.topic_of("w"))
            };
            format!(
                "(o.aggregate_id, {of_row})
        = (SELECT w.aggregate_id, {of_witness} FROM {rows} w WHERE w.id = l.witness)"
            )
        };
        format!(
            "(hashtext(o.aggregate_id) & 63) = ANY (ARRAY[l.lane])
    AND o.sent_at IS NULL
    AND o.id > l.low AND $3::bigint IS NOT NULL
    AND {same_key}
    AND {not_paused}
    AND {not_blocked}"
        )
    }

    /// The key is neither blocked nor paused. The server evaluates the NOT EXISTS once.
    pub(super) fn not_blocked(self) -> String {
        let (blocked_key, pause) = (self.table.blocked_key(), self.table.pause());
        let (not_blocked, not_paused) = (self.key_not_in(&blocked_key), self.key_not_in(&pause));
        format!(
            "(NOT EXISTS (
        SELECT 1 FROM {blocked_key} UNION ALL SELECT 1 FROM {pause} WHERE aggregate_id IS NOT NULL)
    OR {not_blocked}
    AND {not_paused})"
        )
    }

    /// The table has no row for the key. If two types can share a topic, the type is not part of the key, because rows of a
    /// topic and an `aggregate_id` must wait together.
    fn key_not_in(self, table: &str) -> String {
        let same_type =
            if self.topics.is_by_aggregate_type() { " AND b.aggregate_type = o.aggregate_type" } else { "" };
        format!(
            "NOT EXISTS (
        SELECT FROM {table} b
        WHERE hashtext(b.aggregate_id) = hashtext(o.aggregate_id) AND b.aggregate_id = o.aggregate_id{same_type})"
        )
    }

    /// Neither the topic nor everything is paused.
    fn not_paused(self) -> String {
        let (pause, topic) = (self.table.pause(), self.topic());
        format!(
            "NOT EXISTS (
        SELECT FROM {pause} b WHERE b.aggregate_id IS NULL AND (b.topic IS NULL OR b.topic = {topic}))"
        )
    }

    /// The topic is neither held nor paused: one index probe for each row, however many topics are held, and none if there
    /// are no holds and no pauses of topics. The server evaluates the NOT EXISTS without the row once. OFFSET 0 keeps it from
    /// reading all holds for a read of one row.
    pub(super) fn not_held(self) -> String {
        let (hold, pause) = (self.table.hold(), self.table.pause());
        let topic = self.topic();
        format!(
            "(NOT EXISTS (SELECT FROM {hold})
    OR NOT EXISTS (SELECT FROM {hold} b WHERE b.topic = {topic} OFFSET 0))
    AND (NOT EXISTS (SELECT FROM {pause} WHERE topic IS NOT NULL AND aggregate_id IS NULL)
    OR NOT EXISTS (SELECT FROM {pause} b WHERE b.aggregate_id IS NULL AND b.topic = {topic} OFFSET 0))"
        )
    }
}

/// Whether all transactions of this parameter are in progress in the snapshot of the statement. A snapshot does not list its own
/// transaction, which is that of a flow that has recorded rows.
fn are_open(xids: &str) -> String {
    format!(
        "NOT EXISTS (
        SELECT FROM unnest({xids}::bigint[]) AS x(xid)
        WHERE pg_visible_in_snapshot(x.xid::text::xid8, pg_current_snapshot())
          AND x.xid::text::xid8 IS DISTINCT FROM pg_current_xact_id_if_assigned())"
    )
}

/// The reasons for which an unsent row `o` waits, as conditions.
pub(crate) struct WaitConditions {
    /// Its topic is held.
    pub(crate) held: String,
    /// Its key is blocked.
    pub(crate) blocked: String,
    /// Everything, its topic or its key is paused.
    pub(crate) paused: String,
}

impl WaitConditions {
    pub(crate) fn new(table: &TableName, topics: &TopicRules) -> WaitConditions {
        let target = Target { table, topics };
        let (hold, topic) = (table.hold(), target.topic());
        let (not_blocked, not_paused) =
            (target.key_not_in(&table.blocked_key()), target.key_not_in(&table.pause()));
        WaitConditions {
            held: format!("EXISTS (SELECT FROM {hold} b WHERE b.topic = {topic})"),
            blocked: format!("NOT ({not_blocked})"),
            paused: format!("NOT ({} AND {not_paused})", target.not_paused()),
        }
    }
}
