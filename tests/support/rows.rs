//! Rows made on the server, with their lines in the ledger: many of them at once, or of a given size.

use std::ops::Range;

use super::outbox::Outbox;

/// What the payload of a row holds beside its number.
#[derive(Clone, Copy, Debug)]
pub enum Filling {
    Nothing,
    /// So many hexadecimal digits, which no compression makes smaller than half.
    Random(usize),
    /// So many times the same letter.
    Letters(usize),
}

/// Inserts rows of one aggregate type in one transaction, their numbers dealt out to `keys` keys in turn. The ledger
/// counts by the number.
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
