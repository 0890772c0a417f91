//! The script that the packages run after an upgrade. A stand-in for systemctl records what it requests.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use crate::support::command::{Ended, relay_binary};
use crate::support::database::run;
use crate::support::outbox::Outbox;
use crate::support::relay::RelayProcess;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/packaging/restart-after-upgrade");
const UNIT: &str = "outbox-relay@orders.service";

/// Runs the script while this relay is the only running unit. Returns its result and the requested restarts.
fn upgrade(relay: &RelayProcess) -> (Ended, String) {
    let folder = tempfile::tempdir().unwrap();
    let (systemctl, asked) = (folder.path().join("systemctl"), folder.path().join("asked"));
    let pid = relay.pid().as_raw_nonzero();
    let text = format!(
        "#!/bin/sh\ncase $1 in list-units) echo '{UNIT} loaded active running' ;; show) echo {pid} ;; *) echo \"$*\" >>{} ;; \
         esac\n",
        asked.display()
    );
    fs::write(&systemctl, text).unwrap();
    fs::set_permissions(&systemctl, fs::Permissions::from_mode(0o755)).unwrap();
    fs::copy(&systemctl, folder.path().join("deb-systemd-invoke")).unwrap();
    // The first process with the privileges of the relay sees the arguments of all those that lead to it.
    let timeout = folder.path().join("timeout");
    let text = format!(
        "#!/bin/sh\nprintf '%s\\n' \"$*\" >>{}/arguments\nexec /usr/bin/timeout \"$@\"\n",
        folder.path().display()
    );
    fs::write(&timeout, text).unwrap();
    fs::set_permissions(&timeout, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
    let ended = Ended::of(Command::new(SCRIPT).env("PATH", path));
    ended.succeeds();
    let arguments = fs::read_to_string(folder.path().join("arguments")).unwrap();
    assert!(arguments.contains("check-config") && !arguments.contains("postgres://"), "{arguments}");
    (ended, fs::read_to_string(asked).unwrap_or_default())
}

#[tokio::test]
async fn package_restarts_only_relays_that_the_new_version_would_not_stop() {
    let outbox = Outbox::create("package", 1).await;
    // A secret that only the process has.
    let relay = outbox.relay().unset("postgres", "url");
    let relay = relay.set_environment("OUTBOX_RELAY__POSTGRES__URL", outbox.relay_url());
    let config = relay.clone();
    let restart = format!("try-restart {UNIT}\n");
    // `--config FILE` may precede `run`.
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("program");
    fs::write(&program, format!("#!/bin/sh\nexec {} \"$2\" \"$3\" \"$1\"\n", relay_binary().display()))
        .unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let mut other_order = relay.clone().with_program(program).start().await;
    assert_eq!(upgrade(&other_order).1, restart);
    assert!(other_order.stop().await.success());
    let mut relay = relay.start().await;
    assert_eq!(upgrade(&relay).1, restart);

    run(&outbox.client, "DELETE FROM app.outbox_migration WHERE number = 7").await;
    let (ended, asked) = upgrade(&relay);
    assert_eq!(asked, "", "{ended}");
    let command = format!("systemctl restart {UNIT}");
    for said in ["continues with the old version", "migration 7 (privileges) is not applied", &command] {
        assert!(ended.stderr.contains(said), "{said} is missing in {ended}");
    }

    // A setting that the new version does not have.
    relay.reload(config.clone().set("relay", "no_such_setting", 1));
    let (ended, asked) = upgrade(&relay);
    assert_eq!(asked, "", "{ended}");
    assert!(ended.stderr.contains("no_such_setting"), "{ended}");

    // A server that is down does not tell anything about the schema.
    relay.reload(config.set("postgres", "connect_timeout", "1s"));
    run(&outbox.client, &format!("ALTER ROLE {} NOLOGIN", outbox.roles.relay())).await;
    assert_eq!(upgrade(&relay).1, restart);
    run(&outbox.client, &format!("ALTER ROLE {} LOGIN", outbox.roles.relay())).await;
    assert!(relay.stop().await.success());
    outbox.drop().await;
}
