//! What a newcomer meets in the first minutes: each message helps with the next step.

use super::commands::{Setup, binary, kafka};
use crate::support::command::Ended;

#[tokio::test]
async fn empty_lists_say_so() {
    let setup = Setup::migrated("empty_lists").await;
    for (args, said) in [
        (["dead-letters", "list"], "no dead letters\n"),
        (["dead-letters", "history"], "no actions\n"),
        (["blocked-keys", "list"], "no blocked keys\n"),
    ] {
        assert_eq!(setup.relay(&args).succeeds(), said);
        // A list in JSON has one line per entry.
        assert_eq!(setup.relay(&[&args[..], &["--json"]].concat()).succeeds(), "");
    }
    setup.drop(&[]).await;
}

#[tokio::test]
async fn relay_role_is_told_who_may_run_the_commands_of_operators() {
    let setup = Setup::migrated("told").await;
    let group = format!("GRANT \"{}_operator\" TO alice", setup.roles().relay());
    for args in [&["dead-letters", "list"][..], &["dead-letters", "history"], &["pause"], &["verify"]] {
        let ended = Ended::of(binary(args).arg("--config").arg(setup.config()));
        ended.fails(78, &[&group, "OUTBOX_RELAY__POSTGRES__URL=postgres://alice@HOST/DATABASE"]);
        assert!(!ended.stderr.contains("GRANT SELECT"), "{ended}");
    }
    setup.drop(&[]).await;
}

#[tokio::test]
async fn operator_is_told_which_role_runs_the_checks_of_the_relay() {
    let setup = Setup::migrated("operator_told").await;
    let relay = setup.roles().relay().to_owned();
    for args in [&["check-config", "--connect"][..], &["doctor"]] {
        let ended = Ended::of(binary(args).arg("--config").arg(setup.folder.path().join("on-call.toml")));
        let said = format!("run this command with the relay's role, {relay}");
        assert!(ended.to_string().contains(&said) && !ended.to_string().contains("GRANT UPDATE"), "{ended}");
    }
    setup.drop(&[]).await;
}

#[tokio::test]
async fn proposed_commands_have_the_configuration_file() {
    let setup = Setup::migrated("proposed").await;
    let letter = "INSERT INTO app.outbox_dead_letter (outbox_id, event_id, aggregate_type, aggregate_id, event_type,
                      created_at, topic, reason, error)
                  VALUES (1, gen_random_uuid(), 'order', '1', 'X', now(), 'events.order', 'invalid-headers', 'x')";
    setup.sql(letter).await;
    let config = setup.folder.path().join("on-call.toml").display().to_string();
    let status = setup.relay(&["status"]);
    let list = format!("run `outbox-relay dead-letters list --config {config}`");
    assert!(status.succeeds().contains(&list), "{status}");
    let empty = setup.relay(&["blocked-keys", "retry", "--all"]);
    assert!(
        empty.stderr.contains(&format!("run: outbox-relay blocked-keys list --config {config}")),
        "{empty}"
    );
    // A missing migration is a fault with the command that fixes it.
    setup
        .sql("DELETE FROM app.outbox_migration WHERE number = (SELECT max(number) FROM app.outbox_migration)")
        .await;
    let config = setup.config().display().to_string();
    setup
        .relay(&["check-config", "--connect"])
        .fails(78, &[&format!("run `outbox-relay migrate --config {config}`")]);
    setup.drop(&[]).await;
}

#[tokio::test]
async fn superuser_is_told_to_use_the_role_of_the_relay() {
    let setup = Setup::migrated("superuser").await;
    setup.configure(&setup.database.url(), &kafka());
    let doctor = setup.relay(&["doctor"]);
    assert!(doctor.stdout.contains("role-superuser"), "{doctor}");
    assert!(
        doctor.stdout.contains("fix:   connect as the relay's own role. If there is none, create it"),
        "{doctor}"
    );
    assert!(!doctor.stdout.contains("CREATE ROLE"), "{doctor}");
    setup.drop(&[]).await;
}

#[tokio::test]
async fn usage_errors_name_the_next_step() {
    let setup = Setup::migrated("next_step").await;
    Ended::of(binary(&["run"]).env("OUTBOX_RELAY_CONFIG", "")).fails(78, &["run `outbox-relay init`"]);
    setup.relay(&["replay"]).fails(2, &["To preview, add --dry-run."]);
    let preview = setup.relay(&["replay", "--dry-run"]);
    preview.fails(2, &["Pass a filter"]);
    assert!(!preview.stderr.contains("To preview"), "{preview}");
    setup.drop(&[]).await;
}

/// The claim of a relay keeps its snapshot only for moments.
#[tokio::test]
async fn status_does_not_blame_the_relay_for_its_own_snapshot() {
    let setup = Setup::migrated("own_snapshot").await;
    let held_back = async |application: &str| {
        let sql = format!(
            "SET application_name = '{application}'; BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1"
        );
        setup.sql(&sql).await;
        let status = setup.relay(&["status"]);
        setup.sql("COMMIT").await;
        !status.succeeds().contains("vacuum        not held back")
    };
    assert!(held_back("report").await);
    assert!(!held_back("outbox-relay").await);
    setup.drop(&[]).await;
}
