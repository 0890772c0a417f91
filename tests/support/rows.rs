//! Rows that are created on the server together with their ledger lines: many at once, or of a given size.

use std::ops::Range;

use super::outbox::Outbox;

/// What the payload of a row contains in addition to its number.
#[derive(Clone, Copy, Debug)]
pub enum Filling {
    Nothing,
    /// This number of hexadecimal digits, which compression cannot reduce to less than half.
    Random(usize),
    /// The same letter, this number of times.
    Letters(usize),
}

/// Inserts rows of one aggregate type in one transaction. Their numbers are assigned to `keys` keys in turn. The ledger
/// uses the numbers as positions.
pub async fn insert(outbox: &Outbox, kind: &str, keys: i64, numbers: Range<i64>, filling: Filling) {
    let (bytes, filling) = match filling {
        Filling::Nothing => (0, "NULL".to_owned()),
        Filling::Random(bytes) => (bytes, format!("substr(digits, 1 + (n % 1000)::integer, {bytes})")),
        Filling::Letters(letters) => (0, format!("repeat('x', {letters})")),
    };
    let sql = format!(
        "WITH random AS MATERIALIZED (
             SELECT string_agg(md5(block::text), '') AS digits FROM generate_series(0, ({bytes} + 1000) / 32) AS block
         ), event AS (
             INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type, payload)
             SELECT $1, $1 || '-' || n % $2, 'Numbered',
                    json_strip_nulls(json_build_object('seq', n, 'filling', {filling}))
             FROM random, generate_series($3::bigint, $4::bigint - 1) AS n
             ORDER BY n
             RETURNING event_id, aggregate_type, aggregate_id, payload
         )
         INSERT INTO app.ledger (event_id, kind, key, seq, value)
         SELECT event_id, aggregate_type, aggregate_id, (payload ->> 'seq')::bigint, payload::text FROM event"
    );
    outbox
        .client
        .execute(&sql, &[&kind, &keys, &numbers.start, &numbers.end])
        .await
        .unwrap_or_else(|error| panic!("{sql}: {error:?}"));
}
