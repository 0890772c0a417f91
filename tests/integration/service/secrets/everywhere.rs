//! Secrets are given in every possible way, and every kind of failure happens to marked rows. Then the tests search for
//! them in everything that the program outputs: logs at level trace, the output of each command, metrics, health, the
//! systemd status, arguments and errors.

use std::os::unix::net::UnixDatagram;
use std::path::Path;
use tempfile::TempDir;

use outbox_relay::config;

use super::{KAFKA_PASSWORD, PASSWORD, STALLED, assert_no_mark};
use crate::support::command::Ended;
use crate::support::database::run;
use crate::support::outbox::Outbox;
use crate::support::postgres_server::PostgresServer;
use crate::support::relay::{Relay, RelayProcess};
use crate::support::wait::wait_until;

/// Keys are not secret and may appear in lists for operators, but not in logs, metrics and health.
const KEY: &str = "key-9kEyMARK";

/// The way in which a secret is given.
#[derive(Clone, Copy, Debug)]
enum Way {
    Url,
    File,
    Environment,
}

/// A server that requires passwords, an outbox on it, and a folder of credentials.
struct World {
    _server: PostgresServer,
    outbox: Outbox,
    credentials: TempDir,
}

impl World {
    async fn create() -> Self {
        let server = PostgresServer::start(&[]).await;
        let mut outbox = Outbox::create_on(&server, "everywhere", 1).await;
        outbox.create_topic_with("small", 1, &[("max.message.bytes", "20000")]).await;
        for role in outbox.roles.names() {
            run(&outbox.client, &format!("ALTER ROLE {role} PASSWORD '{PASSWORD}'")).await;
        }
        // In clear text, because SCRAM takes most of a second in a build without optimization.
        let hba = server.data().join("pg_hba.conf");
        let rules = std::fs::read_to_string(&hba).unwrap();
        let asked = "host all postgres 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n";
        std::fs::write(&hba, format!("{asked}{rules}")).unwrap();
        server.reload();
        let refused = outbox.database.url_of(outbox.roles.relay());
        wait_until("the server asks for passwords", STALLED, async || {
            tokio_postgres::connect(&refused, tokio_postgres::NoTls).await.is_err()
        })
        .await;
        let credentials = tempfile::tempdir().unwrap();
        std::fs::write(credentials.path().join("postgres-password"), format!("{PASSWORD}\n")).unwrap();
        std::fs::write(credentials.path().join("kafka-password"), KAFKA_PASSWORD).unwrap();
        Self { _server: server, outbox, credentials }
    }

    /// A relay for this role whose secrets are given in this way.
    fn relay(&self, way: Way, role: &str) -> Relay {
        let url = self.outbox.database.url_of(role);
        let relay = self.outbox.relay().set("postgres", "url", url.clone()).set("log", "level", "trace");
        match way {
            Way::Url => relay
                .set("postgres", "url", url.replace('@', &format!(":{PASSWORD}@")))
                .set_kafka_property("ssl.key.password", KAFKA_PASSWORD),
            Way::File => relay
                .set("postgres", "password_file", "postgres-password")
                .set_kafka_property("ssl.key.password_file", "kafka-password")
                .set_environment("CREDENTIALS_DIRECTORY", self.credentials.path()),
            Way::Environment => relay
                .set_environment("OUTBOX_RELAY__POSTGRES__PASSWORD", PASSWORD)
                .set_environment("OUTBOX_RELAY__KAFKA__PROPERTIES__SSL_KEY_PASSWORD", KAFKA_PASSWORD),
        }
    }

    async fn insert(&self, kind: &str, headers: &str, payload: &str) {
        let columns = "aggregate_type, aggregate_id, event_type, headers, payload";
        let values = format!("'{kind}', '{KEY}', 'x', {headers}, {payload}");
        run(&self.outbox.client, &format!("INSERT INTO app.outbox ({columns}) VALUES ({values})")).await;
    }

    /// Inserts a valid row, three rows that are refused by the relay, the client and the broker, and one that is held.
    async fn plant(&self) {
        let marked = r#"'{"content": "payload-7Q4zMARK"}'"#;
        self.insert("order", r#"'{"trace": "header-7Q4zMARK"}'"#, marked).await;
        self.insert("order", r#"'{"trace": ["header-7Q4zMARK"]}'"#, marked).await;
        self.insert("order", "NULL", "to_json('payload-7Q4zMARK' || repeat('x', 1000000))").await;
        let random =
            "(SELECT to_json('7Q4zMARK' || string_agg(md5(n::text), '')) FROM generate_series(1, 2000) AS n)";
        self.insert("small", "NULL", random).await;
        self.insert("missing", r#"'{"trace": "header-7Q4zMARK"}'"#, marked).await;
    }
}

/// Checks everything that a running relay exposes.
async fn assert_relay_leaks_nothing(relay: &RelayProcess, way: Way) {
    let process = Path::new("/proc").join(relay.pid().as_raw_nonzero().to_string());
    let arguments = std::fs::read(process.join("cmdline")).unwrap();
    let mut said = vec![
        ("its arguments", String::from_utf8_lossy(&arguments).into_owned()),
        ("its log", relay.log()),
        ("stdout", relay.stdout()),
        ("/metrics", relay.get("/metrics").await.unwrap().1),
        ("/readyz", relay.get("/readyz").await.unwrap().1),
        ("/livez", relay.get("/livez").await.unwrap().1),
        ("the status page", relay.get("/").await.unwrap().1),
    ];
    if !matches!(way, Way::Environment) {
        // A secret in the environment is visible there, as docs/configuration.md states.
        let environment = std::fs::read(process.join("environ")).unwrap();
        said.push(("its environment", String::from_utf8_lossy(&environment).into_owned()));
    }
    for (what, text) in said {
        assert_no_mark(&format!("{way:?}: {what}"), &text);
        assert!(!text.contains(KEY), "{way:?}: a key in {what}");
    }
}

fn received(socket: &UnixDatagram) -> String {
    let (mut all, mut datagram) = (String::new(), [0; 8_192]);
    while let Ok(length) = socket.recv(&mut datagram) {
        all += &String::from_utf8_lossy(&datagram[..length]);
        all.push('\n');
    }
    all
}

/// A relay on which every kind of failure occurs.
async fn relay_through_everything(world: &World, way: Way, format: &str) {
    let outbox = &world.outbox;
    let folder = tempfile::tempdir().unwrap();
    let socket = UnixDatagram::bind(folder.path().join("notify")).unwrap();
    socket.set_nonblocking(true).unwrap();
    let before = outbox.dead_letters().await;
    let mut relay = world
        .relay(way, outbox.roles.relay())
        .set("admin", "listen", "127.0.0.1:0")
        .set("log", "format", format)
        .set_kafka_property("debug", "security,conf,msg,topic")
        .set_environment("NOTIFY_SOCKET", folder.path().join("notify"))
        .start()
        .await;
    world.plant().await;
    wait_until("there are three dead letters and a hold", STALLED, async || {
        outbox.dead_letters().await == before + 3 && !outbox.holds().await.is_empty()
    })
    .await;
    // DETAIL contains the row.
    let constraint = "ALTER TABLE app.outbox ADD CONSTRAINT forbidden CHECK (sent_at IS NULL) NOT VALID";
    run(&outbox.client, constraint).await;
    world.insert("order", "NULL", r#"'"payload-7Q4zMARK"'"#).await;
    relay.wait_for_log("violates check constraint").await;
    assert_relay_leaks_nothing(&relay, way).await;
    run(&outbox.client, "ALTER TABLE app.outbox DROP CONSTRAINT forbidden").await;
    wait_until("the row is settled", STALLED, async || outbox.unsent_of("order").await == 0).await;
    assert!(relay.stop().await.success(), "{}", relay.log());
    assert_no_mark("the log", &relay.log());
    let received = received(&socket);
    assert!(received.contains("READY=1"), "{received}");
    assert_no_mark("the status for systemd", &received);
    run(
        &outbox.client,
        "DELETE FROM app.outbox WHERE aggregate_type = 'missing'; DELETE FROM app.outbox_hold",
    )
    .await;
}

/// Commands that succeed, and whether their output may contain keys.
const COMMANDS: [(&[&str], bool); 13] = [
    (&["status"], true),
    (&["status", "--json"], true),
    (&["check-config"], false),
    (&["check-config", "--connect"], false),
    (&["dead-letters", "list"], true),
    (&["dead-letters", "list", "--json"], true),
    (&["dead-letters", "history"], false),
    (&["blocked-keys", "list"], true),
    (&["blocked-keys", "list", "--json"], true),
    (&["reap"], false),
    (&["verify"], false),
    (&["replay", "--all", "--dry-run"], false),
    (&["migrate", "--status"], false),
];

#[track_caller]
fn assert_output_leaks_nothing(ended: &Ended, may_show_keys: bool) {
    assert_no_mark("stdout", &ended.stdout);
    assert_no_mark("stderr", &ended.stderr);
    let shows_key = ended.stdout.contains(KEY) || ended.stderr.contains(KEY);
    assert!(may_show_keys || !shows_key, "{ended}");
}

fn assert_commands_leak_nothing(world: &World, way: Way) {
    let (relay_role, on_call) = (world.outbox.roles.relay().to_owned(), world.outbox.roles.on_call());
    let command = |role: &str, args: &[&str]| world.relay(way, role).command(args);
    for (args, may_show_keys) in COMMANDS {
        let role = if args[0] == "check-config" { &relay_role } else { &on_call };
        let ended = command(role, args);
        ended.succeeds();
        assert_output_leaks_nothing(&ended, may_show_keys);
    }
    // The printed SQL is fixed text.
    for args in [&["migrate", "--print"][..], &["migrate", "--print-roles"]] {
        let ended = command(&on_call, args);
        assert!(ended.succeeds().contains("GRANT") || ended.stdout.contains("CREATE TABLE"));
        assert_output_leaks_nothing(&ended, false);
    }
    // Commands that fail with a reason.
    for (args, code, reason) in [
        (&["dead-letters", "show", "4711"][..], 1, "no dead letter 4711"),
        (&["dead-letters", "requeue"], 2, "--all"),
        (&["dead-letters", "requeue", "--all"], 1, "violates check constraint"),
        (&["blocked-keys", "dead-letter", "--all"], 1, "violates check constraint"),
    ] {
        let ended = command(&on_call, args);
        ended.fails(code, &[reason]);
        assert_output_leaks_nothing(&ended, false);
    }
}

/// `dead-letters show` prints the content of one event on request.
async fn assert_show_shows(world: &World) {
    let with_header = "SELECT max(id) FROM app.outbox_dead_letter WHERE reason = 'invalid-headers'";
    let id = world.outbox.count(with_header).await.to_string();
    let shown = world.relay(Way::Url, &world.outbox.roles.on_call()).command(&["dead-letters", "show", &id]);
    assert!(
        shown.succeeds().contains("payload-7Q4zMARK") && shown.stdout.contains("header-7Q4zMARK"),
        "{shown}"
    );
    assert_no_mark("stderr", &shown.stderr);
    assert!(!shown.stdout.contains(PASSWORD), "{shown}");
}

#[tokio::test]
async fn output_of_the_program_contains_no_secret_and_no_content() {
    let world = World::create().await;
    let outbox = &world.outbox;
    for (way, format) in [(Way::Url, "text"), (Way::File, "json"), (Way::Environment, "text")] {
        relay_through_everything(&world, way, format).await;
    }
    // Keys that wait behind a refused event.
    world.insert("order", r#"'{"trace": ["header-7Q4zMARK"]}'"#, r#"'"payload-7Q4zMARK"'"#).await;
    let blocking = world.relay(Way::File, outbox.roles.relay()).set("outbox", "on_rejected", "block-key");
    let mut blocking = blocking.spawn(&["run", "--once"]);
    assert!(blocking.ended().await.success(), "{}", blocking.log());
    assert_no_mark("the log", &blocking.log());
    assert_no_mark("stdout", &blocking.stdout());
    assert_eq!(outbox.count("SELECT count(*) FROM app.outbox_blocked_key").await, 1);

    let refused = "ALTER TABLE app.outbox ADD CONSTRAINT refused CHECK (false) NOT VALID;
                   ALTER TABLE app.outbox_dead_letter ADD CONSTRAINT refused CHECK (false) NOT VALID";
    run(&outbox.client, refused).await;
    for way in [Way::Url, Way::File, Way::Environment] {
        assert_commands_leak_nothing(&world, way);
    }
    assert_show_shows(&world).await;
    world.outbox.drop().await;
}

#[tokio::test]
async fn wrong_password_is_not_in_the_error() {
    let world = World::create().await;
    let role = world.outbox.roles.relay().to_owned();
    run(&world.outbox.client, &format!("ALTER ROLE {role} PASSWORD 'another one'")).await;
    for way in [Way::Url, Way::File, Way::Environment] {
        for args in [&["status"][..], &["check-config", "--connect"], &["run", "--once"], &["migrate"]] {
            let ended = world.relay(way, &role).command(args);
            ended.fails(69, &["password authentication failed"]);
            assert_output_leaks_nothing(&ended, false);
        }
        // The relay waits and logs the reason.
        let sasl = world
            .relay(way, &role)
            .set("admin", "listen", "127.0.0.1:0")
            .set_kafka_property("security.protocol", "sasl_plaintext")
            .set_kafka_property("sasl.mechanism", "PLAIN")
            .set_kafka_property("sasl.username", "relay")
            .set_kafka_property("sasl.password", KAFKA_PASSWORD);
        let mut waiting = sasl.spawn(&["run"]);
        waiting.wait_for_log("password authentication failed").await;
        assert_relay_leaks_nothing(&waiting, way).await;
        assert!(waiting.stop().await.success(), "{}", waiting.log());
    }
    world.outbox.drop().await;
}

#[test]
fn invalid_file_is_reported_without_secrets_by_every_command() {
    let kafka = "[kafka]\nbootstrap_servers = 'k:9092'\n";
    for text in [
        format!("[postgres]\nurl = 'postgres://u:{PASSWORD}@h:port/d'\n{kafka}"),
        format!("[postgres]\nurl = 'postgres://u:{PASSWORD}@h/d\n{kafka}"),
        format!("[postgres]\npassword = {PASSWORD}\n{kafka}"),
        format!("[postgres]\npasword = '{PASSWORD}'\n{kafka}"),
        format!("[postgres]\nurl = 'postgres://u@h/d'\npassword = ['{PASSWORD}']\n{kafka}"),
        format!(
            "[postgres]\nurl = 'postgres://u@h/d'\n{kafka}[kafka.properties]\n'sasl.password' = '{PASSWORD}\n"
        ),
        format!(
            "[postgres]\nurl = 'postgres://u@h/d'\n{kafka}[kafka.properties]\n'sasl.pasword' = '{PASSWORD}'\n"
        ),
        format!(
            "[postgres]\nurl = 'postgres://u@h/d'\n{kafka}[kafka.properties]\n'security.protocol' = 'ssl'\n\
             'ssl.key.pem' = '{PASSWORD}'\n'ssl.key.password' = '{KAFKA_PASSWORD}'\n"
        ),
        format!("url = 'postgres://u:{PASSWORD}@h/d'\n{kafka}"),
        format!(
            "[postgres]\nurl = 'postgres://u:{PASSWORD}@h/d?application_name=x&nonsense={PASSWORD}'\n{kafka}"
        ),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("relay.toml");
        std::fs::write(&path, &text).unwrap();
        for args in [&["check-config"][..], &["run"]] {
            let ended = Ended::of(crate::support::command::binary(args).arg("--config").arg(&path));
            assert_eq!(ended.code, 78, "{text}\n{ended}");
            assert_output_leaks_nothing(&ended, false);
        }
    }
}

#[test]
fn debug_output_of_the_configuration_hides_every_secret() {
    use kafka::options::{SECRETS, check_property};
    // This build of librdkafka does not support all of them.
    let may_be_set = |name: &&str| check_property(name, "x").is_ok();
    let properties: Vec<&str> = SECRETS.iter().copied().filter(may_be_set).collect();
    assert!(properties.len() >= 4, "{properties:?}");
    let mut variables = vec![
        ("POSTGRES__URL".to_owned(), format!("postgres://u:{PASSWORD}@localhost/d")),
        ("POSTGRES__PASSWORD".to_owned(), PASSWORD.to_owned()),
        ("KAFKA__BOOTSTRAP_SERVERS".to_owned(), "k:9092".to_owned()),
        ("KAFKA__PROPERTIES__SECURITY_PROTOCOL".to_owned(), "sasl_ssl".to_owned()),
        ("KAFKA__PROPERTIES__SASL_MECHANISM".to_owned(), "OAUTHBEARER".to_owned()),
        ("KAFKA__OAUTH__TOKEN_URL".to_owned(), "https://login.example/token".to_owned()),
        ("KAFKA__OAUTH__CLIENT_ID".to_owned(), "relay".to_owned()),
        ("KAFKA__OAUTH__CLIENT_SECRET".to_owned(), KAFKA_PASSWORD.to_owned()),
    ];
    for name in &properties {
        variables.push((
            format!("KAFKA__PROPERTIES__{}", name.replace('.', "_").to_uppercase()),
            KAFKA_PASSWORD.to_owned(),
        ));
    }
    let variables = variables.into_iter().map(|(name, value)| (format!("OUTBOX_RELAY__{name}"), value));
    let config = config::load(None, variables).unwrap_or_else(|findings| panic!("{findings}"));
    assert_eq!(config.kafka.properties.len(), properties.len() + 2);
    assert_no_mark("Debug", &format!("{config:?} {config:#?} {}", config.warnings));
}
