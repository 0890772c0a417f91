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
        (begin("'s'", "'k'", "31 days"), "22023"),
        (begin("NULL", "'k'", "1 s"), "22004"),
        (db.sql("SELECT {s}.once_claim('k', '11 years')"), "22023"),
        (db.sql("SELECT {s}.inbox_receive_many('a', NULL)"), "22004"),
        (db.sql("SELECT {s}.idempotency_extend('s', 'k', gen_random_uuid(), NULL)"), "22023"),
        (db.sql("SELECT {s}.idempotency_extend('s', 'k', gen_random_uuid(), '-1 h')"), "22023"),
        (db.sql("SELECT {s}.idempotency_reach('s', 'k', gen_random_uuid(), 'p', '1', '-1 h')"), "22023"),
        (db.sql("SELECT {s}.idempotency_abandoned('0 s', NULL, 1, 20)"), "22023"),
        (db.sql("SELECT {s}.idempotency_finish('s', 'k', gen_random_uuid(), 200, '[1, 2]')"), "22023"),
        (db.sql("SELECT {s}.idempotency_finish('s', 'k', gen_random_uuid(), 200, '{\"a\": 1}')"), "22023"),
        (
            db.sql("SELECT {s}.idempotency_finish('s', 'k', gen_random_uuid(), 200, '{\"a\": [\"b\"]}')"),
            "22023",
        ),
        (db.sql("SELECT {s}.inbox_reap('-1 day', 10)"), "22023"),
        (db.sql("SELECT {s}.inbox_reap(NULL, 10)"), "22023"),
        (db.sql("SELECT {s}.inbox_reap('1 day', NULL)"), "22023"),
        (db.sql("SELECT {s}.idempotency_reap('-1 day', 10)"), "22023"),
        (db.sql("SELECT {s}.idempotency_reap('1 day', -1)"), "22023"),
        (db.sql("SELECT {s}.once_reap(NULL)"), "22023"),
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

#[tokio::test]
async fn the_data_of_phases_is_limited() {
    let db = Database::new().await;
    let token = "SELECT token::text FROM {s}.idempotency_begin('s', 'k', sha256(''), '1 h')";
    let token = texts(&db, token).await[0].clone().unwrap();
    let reach = |phase: &str, bytes: usize| {
        db.sql(&format!(
            "SELECT {{s}}.idempotency_reach('s', 'k', '{token}', '{phase}', to_jsonb(repeat('x', {bytes})), '1 h')"
        ))
    };
    db.client.batch_execute(&reach("one", 600_000)).await.unwrap();
    let error = db.client.batch_execute(&reach("two", 600_000)).await.unwrap_err();
    assert_eq!(error.code().map(SqlState::code), Some("54000"), "{error:?}");
    assert!(!format!("{error:?}").contains("xxx"), "the error quotes the data");
    db.client.batch_execute(&reach("two", 400_000)).await.unwrap();
    db.clean_up().await;
}

#[tokio::test]
async fn a_released_request_with_a_kept_body_is_completed_later() {
    let db = Database::new().await;
    let begin = |key: &str, body: &str| {
        format!("SELECT token::text FROM {{s}}.idempotency_begin('s', '{key}', sha256(''), '1 h', {body})")
    };
    for (key, body, discard) in
        [("kept", "'body'", "false"), ("not", "NULL", "false"), ("refused", "'body'", "true")]
    {
        let token = texts(&db, &begin(key, body)).await[0].clone().unwrap();
        db.run(&format!("SELECT {{s}}.idempotency_release('s', '{key}', '{token}', discard => {discard})"))
            .await;
    }
    let abandoned = "SELECT key || ' ' || convert_from(request, 'UTF8') FROM {s}.idempotency_abandoned('0 s', '1 h', 5, 9)";
    assert_eq!(texts(&db, abandoned).await, [Some("kept body".to_owned())]);
    assert_eq!(db.number("SELECT count(*) FROM {s}.idempotency_key").await, 1);
    db.clean_up().await;
}

#[tokio::test]
async fn a_request_with_a_committed_phase_cannot_be_discarded() {
    let db = Database::new().await;
    let begin = "SELECT token::text FROM {s}.idempotency_begin('s', 'k', sha256(''), '1 h', 'body')";
    let token = texts(&db, begin).await[0].clone().unwrap();
    db.run(&format!("SELECT {{s}}.idempotency_reach('s', 'k', '{token}', 'charged', '{{}}', '1 h')")).await;
    db.run(&format!("SELECT {{s}}.idempotency_release('s', 'k', '{token}', true)")).await;
    let abandoned = "SELECT recovery_point FROM {s}.idempotency_abandoned('0 s', '1 h', 5, 9)";
    assert_eq!(texts(&db, abandoned).await, [Some("charged".to_owned())]);
    db.clean_up().await;
}

#[tokio::test]
async fn unfinished_requests_end_after_30_days_unless_a_phase_is_committed() {
    let db = Database::new().await;
    db.run(
        "INSERT INTO {s}.idempotency_key (scope, key, fingerprint, created_at, locked_until, recovery_point, request)
         VALUES ('s', 'old', sha256(''), now() - interval '31 days', now(), NULL, 'body'),
                ('s', 'locked', sha256(''), now() - interval '31 days', now() + interval '1 h', NULL, NULL),
                ('s', 'charged', sha256(''), now() - interval '31 days', now(), 'charged', 'body'),
                ('s', 'young', sha256(''), now() - interval '29 days', now(), NULL, 'body')",
    )
    .await;
    assert_eq!(db.number("SELECT {s}.idempotency_reap('40 days', 10)::bigint").await, 0, "the longer one");
    assert_eq!(db.number("SELECT {s}.idempotency_reap('1 day', 10)::bigint").await, 1);
    let left = "SELECT string_agg(key, ' ' ORDER BY key) FROM {s}.idempotency_key";
    assert_eq!(texts(&db, left).await, [Some("charged locked young".to_owned())]);
    db.clean_up().await;
}

#[tokio::test]
async fn a_scope_has_a_maximum_number_of_keys_if_one_is_set() {
    let db = Database::new().await;
    db.run("INSERT INTO {s}.idempotency_service VALUES (session_user, 2)").await;
    let begin = |scope: &str, key: &str| {
        db.sql(&format!("SELECT {{s}}.idempotency_begin('{scope}', '{key}', sha256(''), '1 h')"))
    };
    for (scope, key) in [("s", "1"), ("s", "2"), ("other", "1")] {
        db.client.batch_execute(&begin(scope, key)).await.unwrap();
    }
    let error = db.client.batch_execute(&begin("s", "3")).await.unwrap_err();
    assert_eq!(error.code().map(SqlState::code), Some("OB002"), "{error:?}");
    // Known keys can still be repeated.
    db.client.batch_execute(&begin("s", "2")).await.unwrap();
    assert_eq!(db.number("SELECT count(*) FROM {s}.idempotency_key").await, 3);
    db.clean_up().await;
}

/// The modules use only the server's clock, so a wrong clock on a client has no effect.
#[test]
fn no_module_reads_the_clock_of_the_client() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files: Vec<_> = ["inbox.rs", "once.rs", "version.rs", "database.rs", "idempotency.rs"]
        .map(|file| src.join(file))
        .into();
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
