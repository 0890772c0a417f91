//! `docs/status.md` lists exactly the fields of `--json`.

use super::{World, status};
use crate::support::database::run;
use crate::support::wait::{STALLED, wait_until};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};

const PAGE: &str = include_str!("../../../../docs/status.md");

/// The paths of all values, as `a.b` and `a[].b`, with the type of each value.
fn fields(value: &Value, path: &str, found: &mut BTreeMap<String, &'static str>) {
    let kind = match value {
        // Another item of the list must have a value, or the field will be missing.
        Value::Null => return,
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(list) => {
            assert!(!list.is_empty(), "{path} is empty, so its fields cannot be compared");
            list.iter().for_each(|item| fields(item, &format!("{path}[]"), found));
            "array"
        }
        Value::Object(object) => {
            for (name, value) in object {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                fields(value, &path, found);
            }
            "object"
        }
    };
    if !path.is_empty() && !path.ends_with("[]") {
        found.insert(path.to_owned(), kind);
    }
}

/// The rows of the page's table: path and type, without "or null".
fn documented() -> BTreeMap<String, String> {
    let (_, fields) = PAGE.split_once("## The JSON object").unwrap();
    let rows = fields.lines().filter_map(|line| line.strip_prefix("| `"));
    let row = |line: &str| {
        let (path, rest) = line.split_once("` | ").unwrap_or_else(|| panic!("{line}"));
        let kind = rest.split(" | ").next().unwrap().trim_end_matches(" or null");
        (path.to_owned(), kind.to_owned())
    };
    rows.map(row).collect()
}

#[tokio::test]
async fn page_lists_exactly_the_fields_with_their_types() {
    let world = World::new("status_page").await;
    let others = world.outbox.database.connect().await;
    run(&others, "SET application_name = 'the report'; BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1")
        .await;
    let relay = world.outbox.database.connect_as(&world.role).await;
    run(&relay, "SET application_name = 'outbox-relay'").await;
    world
        .sql(
            "INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type, sent_at)
             VALUES ('order', '1', 'X', now()), ('order', '2', 'X', NULL);
             INSERT INTO app.outbox_hold (topic, reason, error) VALUES ('events.held', 'stuck', 'silent');
             INSERT INTO app.outbox_blocked_key (aggregate_type, aggregate_id, outbox_id, event_id, topic, reason, error)
             VALUES ('order', '9', 9, gen_random_uuid(), 'events.c', 'invalid-headers', 'no object');
             INSERT INTO app.outbox_pause (topic, aggregate_type, aggregate_id, reason)
             VALUES ('events.order', NULL, NULL, 'a test'), (NULL, 'order', '3', NULL);
             INSERT INTO app.outbox_dead_letter (outbox_id, event_id, aggregate_type, aggregate_id, event_type,
                                                 created_at, topic, reason, error)
             VALUES (7, gen_random_uuid(), 'order', '1', 'X', now(), 'events.order', 'record-too-large', 'too large')",
        )
        .await;
    run(&world.outbox.client, "VACUUM app.outbox_lane").await;
    run(&world.outbox.client, "VACUUM app.outbox").await;
    // PostgreSQL 14 reports it after a moment.
    let vacuumed = "SELECT count(last_vacuum) FROM pg_stat_user_tables WHERE relid = 'app.outbox'::regclass";
    wait_until("the vacuum is counted", STALLED, async || world.outbox.count(vacuumed).await == 1).await;
    // Not a real relay, which would send the row.
    let relay_here = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = relay_here.local_addr().unwrap();
    let answering = std::thread::spawn(move || {
        let (mut stream, _) = relay_here.accept().unwrap();
        // If a connection is closed with unread data, it is reset before the response is read.
        let request = BufReader::new(stream.try_clone().unwrap());
        request.lines().find(|line| line.as_ref().is_ok_and(String::is_empty)).unwrap().unwrap();
        let text = "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 15\r\n\r\nKafka: is away\n";
        stream.write_all(text.as_bytes()).unwrap();
    });
    // Only a superuser sees when transactions of other roles began.
    let superuser = world.outbox.relay().set("postgres", "url", world.outbox.database.url());
    let seen = status(&superuser.set("admin", "listen", address.to_string()));
    answering.join().unwrap();
    let mut found = BTreeMap::new();
    fields(&seen, "", &mut found);
    let found: BTreeMap<String, String> =
        found.into_iter().map(|(path, kind)| (path, kind.to_owned())).collect();
    let documented = documented();
    for (path, kind) in &found {
        assert_eq!(
            documented.get(path),
            Some(kind),
            "{path} is not on the page or has another type there: {seen:#}"
        );
    }
    for path in documented.keys() {
        assert!(found.contains_key(path), "{path} is on the page but not in the output: {seen:#}");
    }
    drop((others, relay));
    world.drop().await;
}
