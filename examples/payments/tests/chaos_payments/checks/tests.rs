//! Each check finds its problem, and a sound state has no findings.

use super::{CHECKS, broken};
use crate::support::database::Database;
use crate::{journals, world};

/// An approved and a declined payment, with all their rows.
const SOUND: &str = "
INSERT INTO payment (reference, account, cents, status) VALUES ('r-1', 'a', 100, 'done'), ('r-2', 'a', 50001, 'declined');
INSERT INTO provider.charge (key, reference, cents, approved) VALUES ('k-1', 'r-1', 100, true), ('k-2', 'r-2', 50001, false);
INSERT INTO ledger_entry (payment, reference, account, cents) VALUES (1, 'r-1', 'a', 100);
INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, sent_at)
VALUES ('payment', '1', 'PaymentMade', '{\"reference\": \"r-1\"}', now());
INSERT INTO posting VALUES ('e-1', 'r-1', 'a', 100);
INSERT INTO balance VALUES ('a', 100);
INSERT INTO consumed VALUES ('consumer-1', 2, 1);";

const JOURNAL: &str = r#"{"asked": {"number": 1, "key": "k-1", "reference": "r-1", "account": "a", "cents": 100}}
{"answer": {"number": 1, "key": "k-1", "status": 201, "body": "{\"payment\": 1}", "replayed": false, "attempts": 2}}
{"answer": {"number": 1, "key": "k-1", "status": 201, "body": "{\"payment\": 1}", "replayed": true, "attempts": 1}}
{"mismatch": {"key": "k-1", "status": 422}}
{"asked": {"number": 2, "key": "k-2", "reference": "r-2", "account": "a", "cents": 50001}}
{"answer": {"number": 2, "key": "k-2", "status": 402, "body": "{\"payment\": 2}", "replayed": false, "attempts": 1}}
"#;

/// The change to the sound state for each check, in the order of the checks.
const HARM: [&str; 20] = [
    "DELETE FROM journal.answer WHERE key = 'k-2'",
    "UPDATE journal.answer SET body = '{\"payment\": 1 }' WHERE replayed",
    "UPDATE journal.answer SET status = 201 WHERE key = 'k-2'",
    "UPDATE journal.answer SET body = '{\"payment\": 2}' WHERE key = 'k-1'",
    "UPDATE journal.mismatch SET status = 201",
    "UPDATE payment SET status = 'charged' WHERE id = 1",
    "INSERT INTO ledger_entry (payment, reference, account, cents) VALUES (1, 'r-1', 'a', 100)",
    "INSERT INTO provider.charge (key, reference, cents, approved) VALUES ('k-3', 'r-2', 50001, false)",
    "DELETE FROM outbox",
    "UPDATE posting SET reference = 'r-2'",
    "INSERT INTO posting VALUES ('e-1', 'r-1', 'a', 100)",
    "INSERT INTO payment (reference, account, cents) VALUES ('r-3', 'a', 1)",
    "INSERT INTO provider.charge (key, reference, cents, approved) VALUES ('k-3', 'r-3', 1, false)",
    "INSERT INTO ledger_entry (payment, reference, account, cents) VALUES (1, 'r-3', 'a', 0)",
    "INSERT INTO posting VALUES ('e-3', 'r-3', 'a', 1)",
    "UPDATE balance SET cents = 99",
    "UPDATE ledger_entry SET cents = 99",
    "UPDATE provider.charge SET cents = 99 WHERE approved",
    "UPDATE outbox SET sent_at = NULL",
    "UPDATE consumed SET duplicates = 0",
];

#[tokio::test]
async fn each_check_finds_its_problem() {
    let database = Database::create("payments_checks").await;
    let folder = tempfile::tempdir().unwrap();
    world::migrate(folder.path(), &database.url()).await;
    let client = database.connect().await;
    for tables in ["shop", "provider", "balances"] {
        let path = format!("{}/sql/{tables}.sql", env!("CARGO_MANIFEST_DIR"));
        client.batch_execute(&std::fs::read_to_string(path).unwrap()).await.unwrap();
    }
    client.batch_execute(SOUND).await.unwrap();
    let journal = folder.path().join("client-1.journal");
    std::fs::write(&journal, JOURNAL).unwrap();
    journals::load(&client, &[journal]).await;
    assert_eq!(broken(&client).await, [""; 0]);
    for ((what, _), harm) in CHECKS.iter().zip(HARM) {
        client.batch_execute("BEGIN").await.unwrap();
        client.batch_execute(harm).await.unwrap();
        let found = broken(&client).await;
        assert!(found.iter().any(|found| found.contains(what)), "{harm}: {found:#?}");
        client.batch_execute("ROLLBACK").await.unwrap();
    }
    drop(client);
    database.drop(&[]).await;
}
