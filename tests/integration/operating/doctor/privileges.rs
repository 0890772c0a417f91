//! Privileges that the role lacks, and privileges that it does not need.

use super::{Found, World};

#[tokio::test]
async fn missing_privilege_is_found_together_with_what_it_hides() {
    let world = World::new("doctor_grant").await;
    let role = &world.role;
    let revoke = format!("REVOKE SELECT ON app.outbox FROM {role}");
    world.sql(&revoke).await;
    world.doctor().has("check-skipped", "permission denied");
    world.found_and_fixed(&revoke, "grant-missing", "lacks SELECT").await;
    world.doctor().has_not("check-skipped");
    world
        .found_and_fixed(&format!("REVOKE DELETE ON app.outbox FROM {role}"), "grant-missing", "DELETE")
        .await;
    world.drop().await;
}

#[tokio::test]
async fn excess_privileges_are_found_and_revoked() {
    let world = World::new("doctor_privileges").await;
    let role = world.role.clone();
    let found = async |damage: String, code: &str, problem: &str| {
        world.found_and_fixed(&damage, code, problem).await;
        assert_eq!(world.doctor().codes(), [""; 0], "the relay's own privileges must be kept: {damage}");
    };
    found(format!("ALTER ROLE {role} CREATEROLE CREATEDB"), "role-attributes", "CREATEROLE, CREATEDB").await;
    found(format!("GRANT UPDATE ON app.outbox TO {role}"), "events-changeable", "payload, headers").await;
    found(
        format!("GRANT UPDATE (payload) ON app.outbox TO {role}"),
        "events-changeable",
        "may change payload",
    )
    .await;
    found(format!("ALTER TABLE app.outbox OWNER TO {role}"), "role-owner", "owns the outbox").await;
    found(format!("GRANT SELECT ON app.ledger TO {role}"), "other-tables", "may use app.ledger").await;
    found("GRANT DELETE ON app.aggregate TO PUBLIC".to_owned(), "other-tables", "app.aggregate").await;
    found(format!("GRANT pg_read_all_data TO {role}"), "other-tables", "app.aggregate, app.ledger").await;
    let create = "GRANT CREATE ON SCHEMA app TO PUBLIC".to_owned();
    found(create, "schema-create", "PUBLIC may create objects in it").await;
    let owner = world.outbox.roles.on_call();
    found(format!("ALTER SCHEMA app OWNER TO {owner}"), "schema-create", "gain the rights of the role").await;
    let timeout = format!("ALTER ROLE {role} SET idle_session_timeout = '5s'");
    found(timeout, "role-timeout", "idle_session_timeout is 5s: idle connections of the relay").await;
    let timeout = format!("ALTER ROLE {role} SET statement_timeout = '20s'");
    found(timeout, "role-timeout", "statement_timeout is 20s: the relay is not affected").await;
    world.drop().await;
}

#[tokio::test]
async fn superuser_is_found() {
    let world = World::new("doctor_superuser").await;
    let superuser = world.outbox.relay().set("postgres", "url", world.outbox.database.url());
    let remedy = Found::by(&superuser).has("role-superuser", "is a superuser");
    assert!(remedy.contains("migrate --print-roles"), "{remedy}");
    world.drop().await;
}
