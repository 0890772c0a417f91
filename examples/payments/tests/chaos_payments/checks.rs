//! The checks. They compare the clients' requests with the ledger, the provider and the consumer. None of these has a
//! unique index that would hide a second effect.

use tokio_postgres::Client;

pub const IN_LEDGER_ONCE: &str = "payments that are not in the ledger exactly once";
pub const CHARGED_ONCE: &str = "payments that were not charged exactly once";
pub const EVENT_POSTED_TWICE: &str = "events that were posted more than once";

/// What each query counts. Each count must be 0.
const CHECKS: [(&str, &str); 20] = [
    // Each client has one consistent answer.
    ("payments without an answer", "SELECT count(*) FROM journal.asked WHERE key NOT IN (SELECT key FROM journal.answer)"),
    (
        "payments with two different answers",
        "SELECT count(*) FROM (SELECT FROM journal.answer GROUP BY key HAVING count(DISTINCT (status, body)) > 1) AS two",
    ),
    (
        "payments whose answer is neither 201 nor, if declined, 402",
        "SELECT count(*) FROM journal.asked JOIN journal.answer USING (key)
         WHERE status <> CASE WHEN approved THEN 201 ELSE 402 END",
    ),
    (
        "answers with another payment",
        "SELECT count(*) FROM journal.asked AS a JOIN journal.answer USING (key)
         LEFT JOIN payment AS p ON p.id = (body::jsonb ->> 'payment')::bigint AND p.reference = a.reference
         WHERE p.id IS NULL",
    ),
    ("used keys with another payment that were not refused", "SELECT count(*) FROM journal.mismatch WHERE status <> 422"),
    // Each payment happened once, everywhere.
    (
        "payments that were not started exactly once, or not finished",
        "SELECT count(*) FROM journal.asked AS a
         LEFT JOIN (SELECT reference, account, cents, count(*) AS times, min(status) AS status
                    FROM payment GROUP BY 1, 2, 3) AS p USING (reference, account, cents)
         WHERE times IS DISTINCT FROM 1 OR status <> CASE WHEN approved THEN 'done' ELSE 'declined' END",
    ),
    (
        IN_LEDGER_ONCE,
        "SELECT count(*) FROM journal.asked
         LEFT JOIN (SELECT reference, account, cents, count(*) AS times FROM ledger_entry GROUP BY 1, 2, 3) AS l
             USING (reference, account, cents)
         WHERE coalesce(times, 0) <> approved::int",
    ),
    (
        CHARGED_ONCE,
        "SELECT count(*) FROM journal.asked AS a
         LEFT JOIN (SELECT reference, cents, count(*) AS times, bool_and(approved) AS approved
                    FROM provider.charge GROUP BY 1, 2) AS c USING (reference, cents)
         WHERE times IS DISTINCT FROM 1 OR c.approved <> a.approved",
    ),
    (
        "payments that do not have exactly one event",
        "SELECT count(*) FROM journal.asked
         LEFT JOIN (SELECT payload ->> 'reference' AS reference, count(*) AS times FROM outbox GROUP BY 1) AS o USING (reference)
         WHERE coalesce(times, 0) <> approved::int",
    ),
    (
        "payments that were not posted exactly once",
        "SELECT count(*) FROM journal.asked
         LEFT JOIN (SELECT reference, account, cents, count(*) AS times FROM posting GROUP BY 1, 2, 3) AS p
             USING (reference, account, cents)
         WHERE coalesce(times, 0) <> approved::int",
    ),
    (EVENT_POSTED_TWICE, "SELECT count(*) FROM (SELECT FROM posting GROUP BY event_id HAVING count(*) > 1) AS two"),
    // Nothing happened without a request.
    ("payments without a request", "SELECT count(*) FROM payment WHERE reference NOT IN (SELECT reference FROM journal.asked)"),
    ("charges without a request", "SELECT count(*) FROM provider.charge WHERE reference NOT IN (SELECT reference FROM journal.asked)"),
    ("entries without a request", "SELECT count(*) FROM ledger_entry WHERE reference NOT IN (SELECT reference FROM journal.asked)"),
    ("postings without a request", "SELECT count(*) FROM posting WHERE reference NOT IN (SELECT reference FROM journal.asked)"),
    // The sums are equal.
    (
        "accounts whose balance is not the sum of the requested payments",
        "SELECT count(*) FROM (SELECT account, sum(cents) AS asked FROM journal.asked WHERE approved GROUP BY 1) AS a
         FULL JOIN balance USING (account) WHERE asked IS DISTINCT FROM balance.cents",
    ),
    (
        "accounts whose balance is not the sum of the ledger",
        "SELECT count(*) FROM (SELECT account, sum(cents) AS entered FROM ledger_entry GROUP BY 1) AS l
         FULL JOIN balance USING (account) WHERE entered IS DISTINCT FROM balance.cents",
    ),
    (
        "cents of difference between the provider and the balances",
        "SELECT abs((SELECT coalesce(sum(cents), 0) FROM provider.charge WHERE approved)
                  - (SELECT coalesce(sum(cents), 0) FROM balance))::bigint",
    ),
    // Nothing is left over, and nothing was skipped.
    (
        "unfinished requests, unsent events, dead letters or unreadable records",
        "SELECT (SELECT count(*) FROM idempotency_key WHERE finished_at IS NULL)
              + (SELECT count(*) FROM outbox WHERE sent_at IS NULL)
              + (SELECT count(*) FROM outbox_dead_letter) + (SELECT count(*) FROM unreadable_record)",
    ),
    (
        "records that were read but neither posted nor counted as duplicates",
        "SELECT abs((SELECT coalesce(sum(records - duplicates), 0) FROM consumed) - (SELECT count(*) FROM posting))::bigint",
    ),
];

/// Every check that failed, one sentence each.
pub async fn broken(client: &Client) -> Vec<String> {
    let mut broken = Vec::new();
    for (what, sql) in CHECKS {
        let count: i64 =
            client.query_one(sql, &[]).await.unwrap_or_else(|error| panic!("{what}: {error:?}")).get(0);
        if count != 0 {
            broken.push(format!("{count} {what}"));
        }
    }
    broken
}

/// A run with too few payments is not conclusive.
pub async fn too_few_payments(client: &Client, payments_min: i64) -> Option<String> {
    let count: i64 = client.query_one("SELECT count(*) FROM journal.asked", &[]).await.unwrap().get(0);
    (count < payments_min)
        .then(|| format!("only {count} payments were requested, at least {payments_min} are expected"))
}

#[cfg(test)]
#[path = "checks/tests.rs"]
mod tests;
