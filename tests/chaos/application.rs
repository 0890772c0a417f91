//! The application: aggregates, and a ledger of their events that is written in the transaction of the event.

use std::collections::HashSet;
use std::rc::Rc;
use tokio_postgres::{Client, Error, NoTls, Row};

use crate::checker::{Committed, DeadLetter, Digest};

/// An aggregate has a row, which its writers lock before they insert an event; it counts its events.
const SCHEMA: &str = "
CREATE TABLE aggregate (key text PRIMARY KEY, kind text NOT NULL, seq bigint NOT NULL DEFAULT 0);
CREATE TABLE ledger (event_id uuid, kind text, key text, seq bigint, value bytea, poison boolean);
CREATE INDEX ON outbox (sent_at); -- for the measurements";

/// Waits for whoever has the turn. In the order of the keys, so that nobody deadlocks.
const TAKE_TURN: &str = "SELECT key FROM aggregate WHERE key = ANY($1) ORDER BY key FOR UPDATE";

/// One event of each key, and its line in the ledger.
const WRITE: &str = "
WITH turn AS (
    UPDATE aggregate SET seq = seq + 1 WHERE key = ANY($1) RETURNING key, kind, seq
), event AS (
    INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload)
    SELECT kind, key, 'Changed', json_build_object('seq', seq, 'filling', $2::text) FROM turn
    RETURNING event_id, aggregate_id, payload
)
INSERT INTO ledger (event_id, kind, key, seq, value, poison)
SELECT event_id, kind, key, seq, sha256(convert_to(payload::text, 'UTF8')), $3
FROM event JOIN turn ON key = aggregate_id
RETURNING event_id";

/// One topic for each kind of aggregate.
pub struct Kind {
    pub name: &'static str,
    pub partitions: i32,
    pub aggregates: i32,
}

/// A hundred aggregates.
pub const KINDS: [Kind; 3] = [
    Kind { name: "order", partitions: 6, aggregates: 50 },
    Kind { name: "payment", partitions: 3, aggregates: 30 },
    Kind { name: "shipment", partitions: 1, aggregates: 20 },
];
/// Aggregates beside these, whose writers keep each other waiting. They are of the first kind.
pub const SLOW_AGGREGATES: i32 = 8;

pub fn topic(kind: &str) -> String {
    format!("events.{kind}")
}

pub fn slow_keys() -> Vec<String> {
    (1..=SLOW_AGGREGATES).map(|number| format!("slow-{number}")).collect()
}

pub fn keys() -> Vec<String> {
    let of = |kind: &Kind| {
        let name = kind.name;
        (1..=kind.aggregates).map(move |number| format!("{name}-{number}"))
    };
    KINDS.iter().flat_map(of).collect()
}

/// A connection, which ends with the client.
pub async fn connect(url: &str) -> Result<Client, Error> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

/// Makes the tables beside those of the outbox, and the aggregates.
pub async fn create(client: &Client) {
    client.batch_execute(SCHEMA).await.unwrap();
    let add = "INSERT INTO aggregate (key, kind) SELECT $1 || '-' || n, $2 FROM generate_series(1, $3) AS n";
    for kind in &KINDS {
        client.execute(add, &[&kind.name, &kind.name, &kind.aggregates]).await.unwrap();
    }
    client.execute(add, &[&"slow", &KINDS[0].name, &SLOW_AGGREGATES]).await.unwrap();
}

/// Takes the turn of these aggregates, within the transaction that is open.
pub async fn take_turn(client: &Client, keys: &[&str]) -> Result<(), Error> {
    client.query(TAKE_TURN, &[&keys]).await.map(drop)
}

/// One event of each of these aggregates, within the transaction that is open; returns their ids.
pub async fn write(
    client: &Client,
    keys: &[&str],
    filling: &str,
    poison: bool,
) -> Result<Vec<uuid::Uuid>, Error> {
    let rows = client.query(WRITE, &[&keys, &filling, &poison]).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// The whole ledger.
pub async fn ledger(client: &Client) -> Vec<Committed> {
    let rows = client.query("SELECT event_id, kind, key, seq, value, poison FROM ledger", &[]).await.unwrap();
    let mut names = HashSet::new();
    rows.iter()
        .map(|row| Committed {
            event_id: row.get(0),
            topic: name(&mut names, &topic(row.get(1))),
            key: name(&mut names, row.get(2)),
            seq: row.get(3),
            value: digest(row, 4).expect("a value"),
            poison: row.get(5),
        })
        .collect()
}

/// All dead letters.
pub async fn dead_letters(client: &Client) -> Vec<DeadLetter> {
    let sql = "SELECT event_id, reason, sha256(payload) FROM outbox_dead_letter";
    let rows = client.query(sql, &[]).await.unwrap();
    let letter = |row: &Row| DeadLetter { event_id: row.get(0), reason: row.get(1), value: digest(row, 2) };
    rows.iter().map(letter).collect()
}

/// There are a million lines in the ledger and a hundred names.
fn name(names: &mut HashSet<Rc<str>>, text: &str) -> Rc<str> {
    if let Some(known) = names.get(text) {
        return Rc::clone(known);
    }
    let new: Rc<str> = text.into();
    names.insert(Rc::clone(&new));
    new
}

fn digest(row: &Row, column: usize) -> Option<Digest> {
    row.get::<_, Option<&[u8]>>(column).map(|bytes| Digest(bytes.try_into().expect("SHA-256 has 32 bytes")))
}
