//! The application: aggregates, and a ledger of their events that is written in the same transaction as the event.

use std::collections::HashSet;
use std::rc::Rc;
use tokio_postgres::{Client, Error, NoTls, Row};

use crate::checker::{Committed, DeadLetter, Digest};

/// Each aggregate has a row with a count of its events. A writer locks the row before it inserts an event.
const SCHEMA: &str = "
CREATE TABLE aggregate (key text PRIMARY KEY, kind text NOT NULL, seq bigint NOT NULL DEFAULT 0);
CREATE TABLE ledger (event_id uuid, kind text, key text, seq bigint, value bytea, poison boolean);
CREATE INDEX ON outbox (sent_at); -- for the measurements";

/// Waits for the turn of each aggregate. Locks in the order of the keys, so that writers do not deadlock.
const TAKE_TURN: &str = "SELECT key FROM aggregate WHERE key = ANY($1) ORDER BY key FOR UPDATE";

/// Inserts one event for each key, and the ledger line of each event.
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

/// A kind of aggregate. Each kind has its own topic.
pub struct Kind {
    pub name: &'static str,
    pub partitions: i32,
    pub aggregates: i32,
}

/// A hundred aggregates in total.
pub const KINDS: [Kind; 3] = [
    Kind { name: "order", partitions: 6, aggregates: 50 },
    Kind { name: "payment", partitions: 3, aggregates: 30 },
    Kind { name: "shipment", partitions: 1, aggregates: 20 },
];
/// Additional aggregates whose writers keep each other waiting. They are of the first kind.
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

/// Creates the tables of the application and the aggregates.
pub async fn create(client: &Client) {
    client.batch_execute(SCHEMA).await.unwrap();
    let add = "INSERT INTO aggregate (key, kind) SELECT $1 || '-' || n, $2 FROM generate_series(1, $3) AS n";
    for kind in &KINDS {
        client.execute(add, &[&kind.name, &kind.name, &kind.aggregates]).await.unwrap();
    }
    client.execute(add, &[&"slow", &KINDS[0].name, &SLOW_AGGREGATES]).await.unwrap();
}

/// Takes the turn of these aggregates within the open transaction.
pub async fn take_turn(client: &Client, keys: &[&str]) -> Result<(), Error> {
    client.query(TAKE_TURN, &[&keys]).await.map(drop)
}

/// Writes one event of each of these aggregates within the open transaction, and returns the event ids.
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

/// Interns a name. The ledger has a million lines but only a hundred names.
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
