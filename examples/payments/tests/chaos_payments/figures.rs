//! The figures of a run, from the same tables.

use tokio_postgres::Client;

const FIGURES: [(&str, &str); 16] = [
    ("payments requested", "SELECT count(*) FROM journal.asked"),
    ("  of which declined", "SELECT count(*) FROM journal.asked WHERE NOT approved"),
    ("requests sent", "SELECT coalesce(sum(attempts), 0)::bigint FROM journal.answer"),
    ("  of which retries", "SELECT coalesce(sum(attempts - 1), 0)::bigint FROM journal.answer"),
    ("answers", "SELECT count(*) FROM journal.answer"),
    ("  of which replays", "SELECT count(*) FROM journal.answer WHERE replayed"),
    ("used keys refused", "SELECT count(*) FROM journal.mismatch WHERE status = 422"),
    ("requests taken over", "SELECT count(*) FROM idempotency_key WHERE attempts > 1"),
    ("  finished by the completer", "SELECT count(*) FROM payment WHERE done_by = 'completer'"),
    ("charges", "SELECT count(*) FROM provider.charge"),
    (
        "  requested again with the same key",
        "SELECT coalesce(sum(times_asked - 1), 0)::bigint FROM provider.charge",
    ),
    ("events", "SELECT count(*) FROM outbox"),
    ("records in Kafka", "SELECT $1::bigint"),
    ("records read by the consumers", "SELECT coalesce(sum(records), 0)::bigint FROM consumed"),
    ("  of which duplicates, absorbed", "SELECT coalesce(sum(duplicates), 0)::bigint FROM consumed"),
    ("postings", "SELECT count(*) FROM posting"),
];

/// The figures with their names. `records` is the number of records in Kafka.
pub async fn figures(client: &Client, records: i64) -> Vec<(&'static str, i64)> {
    let mut figures = Vec::new();
    for (name, sql) in FIGURES {
        let row = if sql.contains("$1") {
            client.query_one(sql, &[&records]).await
        } else {
            client.query_one(sql, &[]).await
        };
        figures.push((name, row.unwrap_or_else(|error| panic!("{name}: {error:?}")).get(0)));
    }
    figures
}
