//! The columns of the outbox in SQL. `[outbox.columns]` can give them other names than the standard ones.
//!
//! Statements that read the outbox take its rows from [`TableName::rows`], which has the standard names. Statements that
//! change rows need the table itself, and name its columns with [`TableName::column`], or in a template with `{id_column}`,
//! `{sent_at_column}` and so on. With the standard names, both are exactly the names that the statement would otherwise have.

use crate::column_names::Column;
use crate::table::{TableName, quote_identifier};

impl TableName {
    /// The column for SQL text. A standard name needs no quotes.
    pub(crate) fn column(&self, column: Column) -> String {
        if self.columns().is_renamed(column) {
            quote_identifier(self.columns().name(column))
        } else {
            column.name().to_owned()
        }
    }

    /// The column of the row `alias` of the table itself.
    pub(crate) fn column_of(&self, alias: &str, column: Column) -> String {
        format!("{alias}.{}", self.column(column))
    }

    /// The same as an output column with the standard name.
    fn output_of(&self, alias: &str, column: Column) -> String {
        let of_row = self.column_of(alias, column);
        if self.columns().is_renamed(column) { format!("{of_row} AS {column}") } else { of_row }
    }

    fn outputs_of(&self, alias: &str, columns: impl IntoIterator<Item = Column>) -> String {
        let outputs = columns.into_iter().map(|column| self.output_of(alias, column));
        outputs.collect::<Vec<_>>().join(", ")
    }

    /// Every column of an event except `sent_at` and `topic`, with the standard names, of the row `alias` of the table itself.
    pub(crate) fn whole_event(&self, alias: &str) -> String {
        let of_event = |column: &Column| !matches!(column, Column::SentAt | Column::Topic);
        self.outputs_of(alias, Column::ALL.into_iter().filter(of_event))
    }

    /// The rows of the outbox in a FROM clause, followed by an alias. Its columns have the standard names. The planner
    /// replaces the subquery with the table. The alias `o` inside is the one that the plan shows.
    pub(crate) fn rows(&self, with_topic: bool) -> String {
        if self.columns().are_standard() {
            return self.quoted();
        }
        let columns = Column::ALL.into_iter().filter(|column| with_topic || *column != Column::Topic);
        format!("(SELECT {}, o.ctid FROM {} o)", self.outputs_of("o", columns), self.quoted())
    }

    /// [`TableName::rows`], without a topic, for a FROM clause without an alias.
    pub(crate) fn named_rows(&self) -> String {
        let alias = if self.columns().are_standard() { "" } else { " AS events" };
        self.rows(false) + alias
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::column_names::Columns;

    fn table() -> TableName {
        TableName::new("app", "events").unwrap()
    }

    #[test]
    fn standard_names_leave_statements_as_they_are() {
        let sql = "{rows} o, {named_rows}, {sent_at_column}, {whole_event}";
        let expected = "\"app\".\"events\" o, \"app\".\"events\", sent_at, o.id, o.event_id, o.aggregate_type, \
                        o.aggregate_id, o.event_type, o.payload, o.headers, o.created_at";
        assert_eq!(table().render(sql), expected);
        assert_eq!(table().rows(true), "\"app\".\"events\"");
    }

    #[test]
    fn renamed_columns_are_quoted_and_rows_have_the_standard_names() {
        let names = [
            (Column::Id, "seq"),
            (Column::EventId, "id"),
            (Column::SentAt, "sent\"at"),
            (Column::Topic, "t"),
        ];
        let names = names.map(|(column, name)| (column, name.to_owned()));
        let table = table().with_columns(Columns::new(names));
        assert_eq!(
            table.render("{id_column} {sent_at_column} {payload_column}"),
            "\"seq\" \"sent\"\"at\" payload"
        );
        let rows = "(SELECT o.\"seq\" AS id, o.\"id\" AS event_id, o.aggregate_type, o.aggregate_id, o.event_type, \
                    o.payload, o.headers, o.created_at, o.\"sent\"\"at\" AS sent_at";
        assert_eq!(table.rows(false), format!("{rows}, o.ctid FROM \"app\".\"events\" o)"));
        assert_eq!(table.rows(true), format!("{rows}, o.\"t\" AS topic, o.ctid FROM \"app\".\"events\" o)"));
        assert_eq!(table.named_rows(), format!("{} AS events", table.rows(false)));
        assert!(
            table.whole_event("o").starts_with("o.\"seq\" AS id, o.\"id\" AS event_id, o.aggregate_type,")
        );
    }
}
