//! The commands in README.md and in the pages of docs/ do what the pages state.
//!
//! `sh` blocks are run by bash and `sql` blocks by psql. `toml NAME` blocks become files. A `text` block after another
//! block is its expected output. `sh background` runs until the end of the page. `sh elsewhere` cannot run in the
//! tests: see the list below.

mod languages;
mod links;
mod moving;
mod page;
mod world;

use page::{Block, Kind, read};
use world::World;

use crate::support::consumer;
use crate::support::wait::{STALLED, wait_until};

/// The pages whose blocks are run. Each has its own test.
const PAGES: [&str; 11] = [
    "../README.md",
    "adopting-a-table.md",
    "getting-started.md",
    "concepts.md",
    "languages/README.md",
    "logs.md",
    "operating.md",
    "migrating-from-a-poller.md",
    "migrating-from-debezium.md",
    "record-format.md",
    "verify-and-replay.md",
];

/// A command with the version of the packages. A release candidate does not change the pages.
macro_rules! with_version {
    ($before:literal, $after:literal) => {
        concat!(
            $before,
            env!("CARGO_PKG_VERSION_MAJOR"),
            ".",
            env!("CARGO_PKG_VERSION_MINOR"),
            ".",
            env!("CARGO_PKG_VERSION_PATCH"),
            $after
        )
    };
}

const INSTALL_DEB: &str = with_version!("sudo apt install ./outbox-relay_", "-1_amd64.deb");
const INSTALL_RPM: &str = with_version!("sudo dnf install ./outbox-relay-", "-1.x86_64.rpm");

/// The first lines of blocks that cannot run here: packages, systemd, and servers of other systems.
const ELSEWHERE: [&str; 12] = [
    "cargo build --release",
    "cargo build --release && sudo install -m 755 target/release/outbox-relay /usr/bin/",
    "curl --fail --request DELETE http://connect.example:8083/connectors/outbox",
    "curl --fail --request PUT http://connect.example:8083/connectors/outbox/stop",
    "journalctl --unit outbox-relay --priority warning",
    "make demo",
    "sudo --preserve-env=OUTBOX_RELAY__POSTGRES__URL,OUTBOX_RELAY__POSTGRES__PASSWORD \\",
    INSTALL_DEB,
    INSTALL_DEB,
    "sudo install -D -m 644 -t /etc/systemd/system systemd/outbox-relay.service systemd/outbox-relay@.service",
    "sudo install -m 644 config.toml /etc/outbox-relay/config.toml",
    "sudo systemctl stop event-poller",
];

#[test]
fn blocks_that_are_not_run_are_listed() {
    let blocks: Vec<Block> = PAGES.iter().flat_map(|page| read(page)).collect();
    let elsewhere = blocks.iter().filter(|block| block.kind == Kind::Elsewhere);
    let mut first: Vec<&str> = elsewhere.filter_map(|block| block.text.lines().next()).collect();
    first.sort_unstable();
    assert_eq!(first, ELSEWHERE);
}

#[test]
fn getting_started_names_the_rpm_of_this_version() {
    const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/getting-started.md");
    let text = std::fs::read_to_string(PAGE).unwrap();
    assert!(text.contains(INSTALL_RPM), "{PAGE} does not contain {INSTALL_RPM}");
}

#[test]
fn blocks_of_all_pages_keep_the_folder_and_use_options_of_current_tools() {
    const OLDER: &str = "Before Kafka 4.2, the option is named `--property`.";
    let mut found = Vec::new();
    links::pages(std::path::Path::new(env!("CARGO_MANIFEST_DIR")), &mut found);
    for path in found {
        let (text, page) = (std::fs::read_to_string(&path).unwrap(), path.display());
        let leaves = text.lines().find(|line| line.trim_start().starts_with("cd "));
        assert_eq!(leaves, None, "{page}: later commands run in this folder; write (cd FOLDER && COMMAND)");
        assert!(!text.contains(" --property print."), "{page}: use --formatter-property");
        assert!(
            !text.contains("--formatter-property") || text.contains(OLDER),
            "{page} does not contain: {OLDER}"
        );
    }
}

async fn run(page: &str, world: &mut World) {
    for block in read(page) {
        world.run(page, &block).await;
    }
}

#[tokio::test]
async fn getting_started() {
    let mut world = World::create(&[]).await;
    // The server checks the password. In clear text, because SCRAM takes most of a second in a build without
    // optimization.
    let hba = world.server.data().join("pg_hba.conf");
    let rules = std::fs::read_to_string(&hba).unwrap();
    std::fs::write(&hba, format!("host all outbox_relay 127.0.0.1/32 scram-sha-256\n{rules}")).unwrap();
    world.server.reload();
    let refused = world.url("outbox_relay", "postgres");
    wait_until("the server asks for a password", STALLED, async || {
        let Err(error) = tokio_postgres::connect(&refused, tokio_postgres::NoTls).await else { return false };
        format!("{error:?}").contains("password")
    })
    .await;
    world.use_own_topics();
    run("getting-started.md", &mut world).await;
    world.end().await;
}

#[tokio::test]
async fn readme_commands_publish_the_event_that_they_insert() {
    const PAGE: &str = "../README.md";
    let mut world = World::create(&[]).await;
    world.with_database().await;
    world.use_own_topics();
    run(PAGE, &mut world).await;
    let topic = world.here("events.order");
    let mut records = Vec::new();
    wait_until("both events arrive", STALLED, async || {
        records = consumer::read_all_of(&world.cluster, std::slice::from_ref(&topic)).await;
        records.len() >= 2
    })
    .await;
    records.sort_by_key(|record| record.timestamp_ms);
    let contents: Vec<_> =
        records.iter().map(|record| (record.key.as_deref(), record.value.as_deref())).collect();
    assert_eq!(
        contents,
        [(Some(&b"1"[..]), Some(&b"{}"[..])), (Some(b"42"), Some(&br#"{"total": 12}"#[..]))]
    );
    world.end().await;
}

#[tokio::test]
async fn setup_of_the_other_languages() {
    let mut world = World::create(&[]).await;
    world.with_outbox().await;
    run("languages/README.md", &mut world).await;
    world.end().await;
}

#[tokio::test]
async fn concepts_logs_operating_and_record_format() {
    let mut world = World::create(&[]).await;
    world.with_outbox().await;
    run("logs.md", &mut world).await;
    run("concepts.md", &mut world).await;
    run("operating.md", &mut world).await;
    run("record-format.md", &mut world).await;
    world.end().await;
}

#[tokio::test]
async fn adopting_a_table_publishes_its_unsent_events() {
    const PAGE: &str = "adopting-a-table.md";
    let mut world = World::create(&[]).await;
    world.with_database().await;
    let topic = world.create_topic("shop.order", 1).await;
    run(PAGE, &mut world).await;
    let records = consumer::read_all_of(&world.cluster, &[topic]).await;
    let contents: Vec<_> =
        records.iter().map(|record| (record.key.as_deref(), record.value.as_deref())).collect();
    assert_eq!(contents, [(Some(&b"42"[..]), Some(&br#"{"total": 12}"#[..]))]);
    world.end().await;
}

#[tokio::test]
async fn verify_and_replay() {
    let mut world = World::create(&[]).await;
    world.with_outbox().await;
    world.create_topic("events.order", 3).await;
    let text = "psql -q -c 'CREATE ROLE alice LOGIN' -c 'GRANT outbox_relay_operator TO alice' -c \"INSERT INTO outbox \
                (aggregate_type, aggregate_id, event_type) SELECT 'order', n::text, 'Placed' FROM generate_series(1, 9) \
                AS n\"\noutbox-relay run --once --config config.toml";
    let before = Block { line: 0, kind: Kind::Shell, text: text.to_owned(), prints: None };
    world.run("prerequisites of a page", &before).await;
    run("verify-and-replay.md", &mut world).await;
    // The page replays the events twice, and no relay is running.
    let text = "test $(psql -At -c 'SELECT count(*) FROM outbox WHERE sent_at IS NULL') = 9";
    let after = Block { line: 0, kind: Kind::Shell, text: text.to_owned(), prints: None };
    world.run("effect of a page", &after).await;
    world.end().await;
}
