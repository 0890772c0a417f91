//! Rows of the outbox as the PostgreSQL client decodes them, from a wire in memory.

use futures_util::TryStreamExt;
use outbox_relay::postgres::cycle::row::OutboxRow;
use outbox_relay::relay::lanes::LANES;
use outbox_relay::relay::outbox::{Event, Payload};
use std::pin::pin;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::runtime::Runtime;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, NoTls};

/// The number of keys, spread over all lanes.
const KEYS: usize = 1_000;

/// The row's own headers.
#[derive(Clone, Copy)]
pub enum Headers {
    None,
    /// One header, as tracing libraries add it.
    Traceparent,
}

/// A PostgreSQL server that answers every query with the same rows.
pub struct Wire {
    runtime: Runtime,
    client: Client,
}

impl Wire {
    /// Rows `first..first + rows`, lane by lane, as the claim reads them.
    pub fn new(first: i64, rows: usize, headers: Headers) -> Wire {
        let runtime = crate::per_row::runtime();
        let (ours, theirs) = tokio::io::duplex(64 * 1_024);
        runtime.spawn(answer(theirs, result(first, rows, headers)));
        let client = runtime.block_on(async {
            let mut config = tokio_postgres::Config::new();
            let (client, connection) = config.user("relay").connect_raw(ours, NoTls).await?;
            tokio::spawn(connection);
            Ok::<Client, tokio_postgres::Error>(client)
        });
        Wire { runtime, client: client.unwrap_or_else(|error| panic!("cannot decode the wire: {error}")) }
    }

    /// Reads all rows in the same way as the claim.
    pub fn read(&self, rows: &mut Vec<OutboxRow>) {
        let read = self.runtime.block_on(async {
            let none = std::iter::empty::<(&i32, Type)>();
            let mut stream = pin!(self.client.query_typed_raw("FETCH", none).await?);
            while let Some(row) = stream.try_next().await? {
                rows.push(OutboxRow::new(row)?);
            }
            Ok::<(), tokio_postgres::Error>(())
        });
        read.unwrap_or_else(|error| panic!("cannot decode the wire: {error}"));
    }
}

/// Rows `first..first + rows`.
///
/// # Panics
///
/// If the relay reads its columns in another order than these rows have.
pub fn rows(first: i64, rows: usize, headers: Headers) -> Vec<OutboxRow> {
    let mut read = Vec::with_capacity(rows);
    Wire::new(first, rows, headers).read(&mut read);
    assert_eq!(read.len(), rows);
    if let Some(row) = read.first() {
        assert_eq!(
            (row.id(), row.aggregate_type(), row.event_type()),
            (first, &b"order"[..], &b"OrderPlaced"[..])
        );
        assert!(
            row.key().starts_with(b"order-")
                && matches!(row.payload(), Payload::Bytes(json) if json.len() == 246)
        );
        assert_eq!(row.headers().is_some(), matches!(headers, Headers::Traceparent));
    }
    read
}

/// The server's side: a startup without a password, then the same answer to every query.
async fn answer(mut wire: DuplexStream, result: Vec<u8>) -> std::io::Result<()> {
    let mut length = [0; 4];
    wire.read_exact(&mut length).await?;
    let mut start = vec![0; u32::from_be_bytes(length) as usize - 4];
    wire.read_exact(&mut start).await?;
    let mut welcome = message(b'R', &0_i32.to_be_bytes());
    welcome.extend(message(b'Z', b"I"));
    wire.write_all(&welcome).await?;
    loop {
        let kind = wire.read_u8().await?;
        let mut body = vec![0; wire.read_u32().await? as usize - 4];
        wire.read_exact(&mut body).await?;
        if kind == b'S' {
            wire.write_all(&result).await?;
        }
    }
}

/// The answer to Parse, Bind, Describe, Execute and Sync.
fn result(first: i64, rows: usize, headers: Headers) -> Vec<u8> {
    let mut result = message(b'1', &[]);
    result.extend(message(b'2', &[]));
    result.extend(message(b't', &0_i16.to_be_bytes()));
    result.extend(message(b'T', &description()));
    let key_of = |row: usize| row * KEYS / rows;
    for row in 0..rows {
        result.extend(message(b'D', &data(first + row as i64, key_of(row), headers)));
    }
    result.extend(message(b'C', format!("SELECT {rows}\0").as_bytes()));
    result.extend(message(b'Z', b"T"));
    result
}

fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut message = vec![kind];
    message.extend((body.len() as u32 + 4).to_be_bytes());
    message.extend(body);
    message
}

/// The columns of [`outbox_relay::postgres::cycle::row::column`].
fn description() -> Vec<u8> {
    let columns = [
        Type::INT8, // the set of holds
        Type::INT8, // the epoch of the marks
        Type::INT8, // id
        Type::INT2, // lane
        Type::UUID,
        Type::TEXT,  // aggregate type
        Type::TEXT,  // aggregate id
        Type::TEXT,  // event type
        Type::JSON,  // payload
        Type::INT8,  // the payload's length if it is too large
        Type::JSONB, // headers
        Type::TIMESTAMPTZ,
    ];
    let mut description = (columns.len() as i16).to_be_bytes().to_vec();
    for column in columns {
        description.extend(b"column\0");
        description.extend(0_u32.to_be_bytes()); // not a table column
        description.extend(0_i16.to_be_bytes());
        description.extend(column.oid().to_be_bytes());
        description.extend((-1_i16).to_be_bytes()); // its size
        description.extend((-1_i32).to_be_bytes()); // its modifier
        description.extend(1_i16.to_be_bytes()); // binary
    }
    description
}

fn data(id: i64, key: usize, headers: Headers) -> Vec<u8> {
    let lane = (key * LANES / KEYS) as i16;
    let aggregate_id = format!("order-{key:06}");
    let payload = format!("{{\"order\":{id:012},\"note\":\"{}\"}}", "x".repeat(246 - 32));
    let headers = match headers {
        Headers::None => None,
        Headers::Traceparent => Some(format!(
            "\u{1}{{\"traceparent\": \"00-4bf92f3577b34da6a3ce929d{id:08x}-00f067aa0ba902b7-01\"}}"
        )),
    };
    let columns: [Option<&[u8]>; 12] = [
        Some(&1_i64.to_be_bytes()),
        Some(&1_i64.to_be_bytes()),
        Some(&id.to_be_bytes()),
        Some(&lane.to_be_bytes()),
        Some(&(id as u128 * 0x9e37_79b9_7f4a_7c15).to_be_bytes()),
        Some(b"order"),
        Some(aggregate_id.as_bytes()),
        Some(b"OrderPlaced"),
        Some(payload.as_bytes()),
        None,
        headers.as_deref().map(str::as_bytes),
        Some(&0_i64.to_be_bytes()),
    ];
    let mut data = (columns.len() as i16).to_be_bytes().to_vec();
    for column in columns {
        match column {
            None => data.extend((-1_i32).to_be_bytes()),
            Some(bytes) => {
                data.extend((bytes.len() as i32).to_be_bytes());
                data.extend(bytes);
            }
        }
    }
    data
}
