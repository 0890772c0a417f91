//! `--print-adapter`.

use super::world::World;
use crate::support::command::{Ended, binary};
use crate::support::database::run;

#[test]
fn adapter_is_printed_without_a_server() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("config.toml");
    let text =
        "[postgres]\nurl = 'postgres://nobody@localhost:1/none'\n[kafka]\nbootstrap_servers = 'none:1'\n";
    std::fs::write(&config, text).unwrap();
    let print = |args: &[&str]| {
        let config = config.to_str().unwrap();
        Ended::of(&mut binary(&[&["migrate", "--config", config], args].concat()))
    };
    let printed = print(&["--print-adapter", "debezium", "--from", "shop.\"Events\"", "--role", "relay"]);
    for part in ["CREATE VIEW shop.\"Events\" AS", "INSERT INTO public.outbox (event_id,", "TO relay_writer;"]
    {
        assert!(printed.succeeds().contains(part), "{part} is missing in {printed}");
    }
    print(&["--print-adapter", "kafka"]).fails(2, &["debezium"]);
    print(&["--from", "shop.events"]).fails(2, &["--print-adapter"]);
    print(&["--role", "relay"]).fails(2, &["--print-roles", "--print-adapter"]);
}

/// An adopted table can be the target too.
#[tokio::test]
async fn adapter_inserts_into_renamed_columns() {
    let world = World::adopted("adapter").await;
    run(
        &world.client,
        "CREATE TABLE public.outboxevent (id uuid PRIMARY KEY, aggregatetype varchar(255) NOT NULL,
                        aggregateid varchar(255) NOT NULL, type varchar(255) NOT NULL, payload jsonb)",
    )
    .await;
    let role = world.roles.as_ref().unwrap().relay().to_owned();
    let printed = world.migrate(&["--print-adapter", "debezium", "--role", &role]);
    run(&world.client, printed.succeeds()).await;
    run(
        &world.client,
        "INSERT INTO outboxevent VALUES (gen_random_uuid(), 'order', '42', 'Placed', '{\"a\": 1}')",
    )
    .await;
    let inserted = "SELECT count(*) FROM app.events WHERE (topic, \"Key\", type, meta ->> 'eventType') = ('order', '42', 'Placed', 'Placed')
                        AND meta ->> 'id' = id::text AND \"user\"::text = '{\"a\": 1}'";
    assert_eq!(world.count(inserted).await, 1);
    // A view does not have the default of the table's ID.
    let without_id = "INSERT INTO outboxevent (aggregatetype, aggregateid, type, payload)
                      VALUES ('order', '43', 'Placed', '{\"a\": 1}')";
    run(&world.client, without_id).await;
    let generated = "SELECT count(*) FROM app.events WHERE \"Key\" = '43' AND meta ->> 'id' = id::text";
    assert_eq!(world.count(generated).await, 1);
    assert_eq!(world.count("SELECT count(*) FROM outboxevent_before WHERE aggregatetype = 'moved'").await, 1);
    world.drop().await;
}
