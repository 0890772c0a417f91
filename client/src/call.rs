//! Statements and their results, independent of the driver.

/// A statement, usually a call of a function, with the kinds of its columns. Each parameter occurs once, in order.
#[derive(Debug)]
pub struct Call {
    sql: String,
    columns: &'static [Kind],
}

/// The value of a parameter.
#[derive(Debug, Clone, Copy)]
pub enum Argument<'a> {
    Text(&'a str),
    Texts(&'a [&'a str]),
    Bytes(Option<&'a [u8]>),
    ByteStrings(&'a [&'a [u8]]),
    Flags(&'a [bool]),
    Seconds(f64),
    Number(i32),
}

/// The expected kind of a column.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    Text,
    Bytes,
    Flag,
    Flags,
    Seconds,
    Number,
}

/// The value of a column.
#[derive(Debug)]
pub enum Column {
    Text(Option<String>),
    Bytes(Option<Vec<u8>>),
    Flag(bool),
    Flags(Vec<bool>),
    Seconds(Option<f64>),
    Number(Option<i32>),
}

/// The columns of a row, to be read in the order of the [`Call`].
#[derive(Debug)]
pub struct Answer(std::vec::IntoIter<Column>);

impl Call {
    pub fn new(sql: String, columns: &'static [Kind]) -> Call {
        Call { sql, columns }
    }

    pub fn sql(&self) -> &str {
        &self.sql
    }

    pub fn columns(&self) -> &'static [Kind] {
        self.columns
    }
}

impl Answer {
    pub fn new(columns: Vec<Column>) -> Answer {
        Answer(columns.into_iter())
    }

    pub fn text(&mut self) -> Option<String> {
        match self.0.next() {
            Some(Column::Text(text)) => text,
            other => unreachable!("the call does not list text here: {other:?}"),
        }
    }

    pub fn bytes(&mut self) -> Option<Vec<u8>> {
        match self.0.next() {
            Some(Column::Bytes(bytes)) => bytes,
            other => unreachable!("the call does not list bytes here: {other:?}"),
        }
    }

    pub fn flag(&mut self) -> bool {
        match self.0.next() {
            Some(Column::Flag(flag)) => flag,
            other => unreachable!("the call does not list a flag here: {other:?}"),
        }
    }

    pub fn flags(&mut self) -> Vec<bool> {
        match self.0.next() {
            Some(Column::Flags(flags)) => flags,
            other => unreachable!("the call does not list flags here: {other:?}"),
        }
    }

    pub fn seconds(&mut self) -> Option<f64> {
        match self.0.next() {
            Some(Column::Seconds(seconds)) => seconds,
            other => unreachable!("the call does not list seconds here: {other:?}"),
        }
    }

    pub fn number(&mut self) -> Option<i32> {
        match self.0.next() {
            Some(Column::Number(number)) => number,
            other => unreachable!("the call does not list a number here: {other:?}"),
        }
    }
}
