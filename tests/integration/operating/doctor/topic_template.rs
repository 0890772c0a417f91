//! The topic template that a relay has recorded, and privileges that recording needs.

use super::World;

#[tokio::test]
async fn template_of_another_relay_is_found_until_it_is_recorded_again() {
    let world = World::new("doctor_template").await;
    world.doctor().has_not("topic-template-differs");
    let mut other = world.outbox.relay().set("outbox", "topic", "elsewhere.{aggregate_type}").start().await;
    let remedy = world.doctor().has("topic-template-differs", "The database has elsewhere.{aggregate_type}");
    assert!(remedy.contains("restart them"), "{remedy}");
    assert!(other.stop().await.success());
    let mut relay = world.relay.clone().start().await;
    assert_eq!(world.doctor().codes(), [""; 0]);
    assert!(relay.stop().await.success());
    world.drop().await;
}

#[tokio::test]
async fn privilege_that_recording_needs_is_found_and_granted() {
    let world = World::new("doctor_template_grant").await;
    let role = &world.role;
    for privilege in ["SELECT", "INSERT", "UPDATE", "ALL"] {
        let revoke = format!("REVOKE {privilege} ON app.outbox_setting FROM {role}");
        world.found_and_fixed(&revoke, "topic-template-unrecorded", "lacks a privilege").await;
        assert_eq!(world.doctor().codes(), [""; 0]);
    }
    world.sql("DROP FUNCTION app.outbox_template; DROP TABLE app.outbox_setting").await;
    let found = world.doctor();
    assert!(found.has("topic-template-unrecorded", "is missing").contains("migrate --print"));
    assert_eq!((found.codes(), found.exit), (vec!["topic-template-unrecorded"], 0));
    world.drop().await;
}
