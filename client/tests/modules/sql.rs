//! Tests the SQL functions that other languages call.

use std::path::Path;

use tokio_postgres::error::SqlState;

use crate::database::{Database, connect};

/// Runs one statement on a new connection and returns its row.
async fn texts(db: &Database, sql: &str) -> Vec<Option<String>> {
    let row = connect().await.query_one(&db.sql(sql), &[]).await.unwrap();
    (0..row.len()).map(|column| row.get(column)).collect()
}

#[tokio::test]
async fn every_function_can_be_called_from_sql() {
    let db = Database::new().await;
    let receive = "SELECT {s}.inbox_receive(subscriber => 'billing', event_id => 'e-1')::text";
    assert_eq!(texts(&db, receive).await, [Some("true".to_owned())]);
    assert_eq!(texts(&db, receive).await, [Some("false".to_owned())]);
    let many = "SELECT {s}.inbox_receive_many('billing', ARRAY['e-2', 'e-1', 'e-2'])::text";
    assert_eq!(texts(&db, many).await, [Some("{t,f,f}".to_owned())]);
    let claim = "SELECT {s}.once_claim('report', interval '1 day')::text";
    assert_eq!(texts(&db, claim).await, [Some("true".to_owned())]);
    assert_eq!(texts(&db, claim).await, [Some("false".to_owned())]);

    let begin =
        "SELECT outcome, token::text, status::text, headers ->> 'location', convert_from(body, 'UTF8')
                 FROM {s}.idempotency_begin('POST /orders 42', 'k-1',
                     {s}.idempotency_fingerprint('{\"b\": 1, \"a\": 2}'), interval '1 minute')";
    let started = texts(&db, begin).await;
    assert_eq!(started[0].as_deref(), Some("started"));
    let token = started[1].clone().unwrap();
    assert_eq!(texts(&db, begin).await[0].as_deref(), Some("in_progress"));
    let other = begin.replace("\"a\": 2", "\"a\": 3");
    assert_eq!(texts(&db, &other).await[0].as_deref(), Some("mismatch"));
    db.run(&format!(
        "SELECT {{s}}.idempotency_reach('POST /orders 42', 'k-1', '{token}', 'charged', '{{\"id\": 7}}', '1 minute');
         SELECT {{s}}.idempotency_extend('POST /orders 42', 'k-1', '{token}', '2 minutes');
         SELECT {{s}}.idempotency_finish('POST /orders 42', 'k-1', '{token}', 201, '{{\"location\": \"/orders/7\"}}', 'done')"
    ))
    .await;
    // The order of the names does not matter.
    let again = begin.replace("\"b\": 1, \"a\": 2", "\"a\": 2, \"b\": 1");
    let replay = texts(&db, &again).await;
    let shown: Vec<_> = replay.iter().map(Option::as_deref).collect();
    assert_eq!(shown, [Some("replay"), None, Some("201"), Some("/orders/7"), Some("done")]);
    db.clean_up().await;
}

#[tokio::test]
async fn the_tables_reject_the_same_values_as_the_crate() {
    let db = Database::new().await;
    let begin = |scope: &str, key: &str, lock_for: &str| {
        db.sql(&format!("SELECT {{s}}.idempotency_begin({scope}, {key}, sha256(''), interval '{lock_for}')"))
    };
    for (statement, sqlstate) in [
        (db.sql("SELECT {s}.inbox_receive('a', '')"), "23514"),
        (db.sql("SELECT {s}.inbox_receive('a', repeat('x', 256))"), "23514"),
        (db.sql("SELECT {s}.inbox_receive(NULL, 'e')"), "23502"),
        (db.sql("SELECT {s}.inbox_receive_many('a', ARRAY['e', NULL])"), "23502"),
        (db.sql("SELECT {s}.once_claim('', interval '1 s')"), "23514"),
        (db.sql("SELECT {s}.once_claim('k', interval '0')"), "22023"),
        (db.sql("SELECT {s}.once_claim('k', NULL)"), "22023"),
        (begin("''", "'k'", "1 s"), "23514"),
        (begin("'s'", "''", "1 s"), "23514"),
        (begin("'s'", "'schlüssel'", "1 s"), "23514"),
        (begin("'s'", "E'a\\nb'", "1 s"), "23514"),
        (begin("'s'", "repeat('k', 256)", "1 s"), "23514"),
        (begin("repeat('s', 513)", "'k'", "1 s"), "23514"),
        (begin("'s'", "'k'", "-1 s"), "22023"),
        (db.sql("SELECT {s}.idempotency_finish('s', 'k', gen_random_uuid(), 200)"), "OB001"),
        (db.sql("SELECT {s}.idempotency_extend('s', 'k', gen_random_uuid(), '1 s')"), "OB001"),
    ] {
        let error = db.client.batch_execute(&statement).await.unwrap_err();
        assert_eq!(error.code().map(SqlState::code), Some(sqlstate), "{statement}: {error:?}");
    }
    db.run("SELECT {s}.idempotency_begin(repeat('s', 512), repeat('~', 255), sha256(''), interval '1 s')")
        .await;
    db.clean_up().await;
}

/// The modules use only the server's clock, so a wrong clock on a client has no effect.
#[test]
fn no_module_reads_the_clock_of_the_client() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files: Vec<_> =
        ["inbox.rs", "once.rs", "version.rs", "call.rs", "idempotency.rs"].map(|file| src.join(file)).into();
    let mut folders = vec![src.join("idempotency")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { folders.push(path) } else { files.push(path) }
        }
    }
    assert!(files.len() > 8, "{files:?}");
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        for clock in ["SystemTime", "Instant", "::now()", "Utc"] {
            assert!(!text.contains(clock), "{} uses {clock}", file.display());
        }
    }
}
