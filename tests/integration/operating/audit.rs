//! The record of operator actions. It names the login. No role can forge it or act without it.

use tokio_postgres::error::SqlState;

use crate::operating::commands::{Setup, kafka};
use crate::support::database::run;

const EVENTS: &str = "
INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type, sent_at)
SELECT 'order', i::text, 'T', CASE WHEN i = 1 THEN now() END FROM generate_series(1, 4) AS i;
INSERT INTO app.outbox_dead_letter (outbox_id, event_id, aggregate_type, aggregate_id, event_type, created_at, topic, reason,
                                    error)
SELECT i, gen_random_uuid(), 'order', i::text, 'T', now(), 't', 'r', 'e' FROM generate_series(101, 102) AS i;
INSERT INTO app.outbox_blocked_key (aggregate_type, aggregate_id, outbox_id, event_id, topic, reason, error)
SELECT 'order', o.aggregate_id, o.id, o.event_id, 't', 'r', 'e' FROM app.outbox AS o WHERE o.id IN (2, 3)
UNION ALL SELECT 'order', '9', 9, gen_random_uuid(), 't', 'r', 'e'";

/// What an operator can do in psql, with the act that is recorded for it.
const IN_PSQL: [(&str, &str); 7] = [
    ("INSERT INTO app.outbox_pause (topic) VALUES ('t')", "pause t"),
    ("DELETE FROM app.outbox_pause", "resume t"),
    ("UPDATE app.outbox_dead_letter SET requeued_at = now() WHERE id = 1", "requeue 101 1"),
    ("DELETE FROM app.outbox_dead_letter WHERE id = 2", "discard 102 2"),
    ("DELETE FROM app.outbox_blocked_key WHERE outbox_id = 2", "retry 2"),
    ("DELETE FROM app.outbox_blocked_key WHERE outbox_id = 9", "lift 9"),
    (
        "WITH b AS (DELETE FROM app.outbox_blocked_key WHERE outbox_id = 3 RETURNING *),
              e AS (DELETE FROM app.outbox AS o USING b WHERE o.id = b.outbox_id RETURNING o.*)
         INSERT INTO app.outbox_dead_letter (outbox_id, event_id, aggregate_type, aggregate_id, event_type, created_at, topic,
                                             reason, error)
         SELECT id, event_id, aggregate_type, aggregate_id, event_type, created_at, 't', 'r', 'e' FROM e",
        "dead-letter 3 3",
    ),
];

const LAST: &str = "
SELECT concat_ws(' ', act, outbox_id, dead_letter_id, CASE WHEN pause_id IS NOT NULL THEN topic END), login, role
FROM app.outbox_act ORDER BY id DESC LIMIT 1";

#[tokio::test]
async fn an_act_in_psql_is_recorded_with_the_login_whatever_the_role_is() {
    let setup = Setup::migrated("audit_login").await;
    setup.sql(EVENTS).await;
    let group = setup.roles().operator();
    let (bob, client) = setup.database.connect_as_new_role().await;
    setup.sql(&format!("GRANT {group} TO {bob}")).await;
    run(&client, &format!("SET ROLE {group}; SET application_name = 'alice-laptop'")).await;
    for (number, (sql, act)) in (1..).zip(IN_PSQL) {
        run(&client, sql).await;
        let row = setup.client.query_one(LAST, &[]).await.unwrap();
        assert_eq!(row.get::<_, &str>(0), act, "{sql}");
        assert_eq!((row.get::<_, &str>(1), row.get::<_, &str>(2)), (&*bob, &*group), "{sql}");
        assert_eq!(setup.number("SELECT count(*) FROM app.outbox_act").await, number, "{sql}");
    }
    setup.configure(&setup.database.url_of(&bob), &kafka());
    let history = setup.relay(&["dead-letters", "history"]);
    assert!(history.succeeds().contains(&format!("{bob} as {group}  dead-letter")), "{history}");
    drop(client);
    setup.drop(&[&bob]).await;
}

#[tokio::test]
async fn no_role_can_record_an_act_that_has_not_happened() {
    let setup = Setup::migrated("audit_forged").await;
    setup.sql(EVENTS).await;
    let operator = setup.database.connect_as(&setup.roles().on_call()).await;
    let relay = setup.database.connect_as(setup.roles().relay()).await;
    let record = |act: &str, id: i64| {
        format!(
            "SELECT app.outbox_record_act('{act}', ARRAY[id], ARRAY[event_id], ARRAY['order'], ARRAY['t'], 'x')
             FROM app.outbox WHERE id = {id}"
        )
    };
    for (who, client, sql) in [
        ("an operator", &operator, "INSERT INTO app.outbox_act (act) VALUES ('resume')".to_owned()),
        ("the relay", &relay, "INSERT INTO app.outbox_act (act) VALUES ('resume')".to_owned()),
        ("the relay", &relay, record("replay", 1)),
    ] {
        let error = client.batch_execute(&sql).await.unwrap_err();
        assert_eq!(error.code(), Some(&SqlState::INSUFFICIENT_PRIVILEGE), "{who}: {sql}: {error:?}");
    }
    let error = operator.batch_execute(&record("discard", 1)).await.unwrap_err();
    assert_eq!(error.code().map(SqlState::code), Some("22023"), "{error:?}");
    // Neither event was replayed: the first is sent, the second was never sent.
    run(&operator, &record("replay", 1)).await;
    run(&operator, &record("replay", 4)).await;
    assert_eq!(setup.number("SELECT count(*) FROM app.outbox_act").await, 0);
    run(
        &operator,
        &format!("BEGIN; UPDATE app.outbox SET sent_at = NULL WHERE id = 1; {}; COMMIT", record("replay", 1)),
    )
    .await;
    assert_eq!(setup.number("SELECT count(*) FROM app.outbox_act WHERE act = 'replay'").await, 1);
    setup.drop(&[]).await;
}
