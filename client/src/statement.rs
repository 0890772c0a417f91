//! Statements and their results, independent of the driver.

/// A statement with the kinds of its columns. Each parameter occurs once, in order.
#[derive(Debug)]
pub struct Statement {
    pub(crate) sql: String,
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

/// The columns of a row, to be read in the order of the [`Statement`].
#[derive(Debug)]
pub struct Answer(std::vec::IntoIter<Column>);

impl Statement {
    pub fn new(sql: impl Into<String>, columns: &'static [Kind]) -> Statement {
        Statement { sql: sql.into(), columns }
    }

    /// Reads a row of the driver.
    pub(crate) fn answer<E>(&self, read: impl Fn(usize, Kind) -> Result<Column, E>) -> Result<Answer, E> {
        let columns = self.columns.iter().enumerate().map(|(index, kind)| read(index, *kind));
        Ok(Answer(columns.collect::<Result<Vec<_>, _>>()?.into_iter()))
    }
}

macro_rules! columns {
    ($($read:ident: $kind:ident -> $value:ty,)*) => {
        impl Answer {
            $(pub fn $read(&mut self) -> $value {
                match self.0.next() {
                    Some(Column::$kind(value)) => value,
                    other => unreachable!("the statement lists another column here: {other:?}"),
                }
            })*
        }
    };
}

columns! {
    text: Text -> Option<String>,
    bytes: Bytes -> Option<Vec<u8>>,
    flag: Flag -> bool,
    flags: Flags -> Vec<bool>,
    seconds: Seconds -> Option<f64>,
    number: Number -> Option<i32>,
}
