//! Logins with AWS IAM (`[kafka.aws]`), as on Amazon MSK.
//!
//! There is no MSK here. Its tokens are not JSON Web Tokens, which Kafka's own validators require, so a real broker gets the
//! validator `tests/java/MskTokens.java`. It verifies the signed URL and its signature with the secret of the access key. The
//! credentials come from a container endpoint and from STS on loopback.

use futures_util::{StreamExt, stream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::kafka::checked;
use crate::postgres::{not_ready, under_load, verdict};
use crate::support::aws::{ASSUMED, Answer, AwsServer, Key, MARK, OWN, nowhere};
use crate::support::certificates::{Files, authority};
use crate::support::command::Ended;
use crate::support::database::run;
use crate::support::kafka_server::{KafkaServer, Settings};
use crate::support::outbox::Outbox;
use crate::support::relay::Relay;
use crate::support::wait::{STALLED, wait_until};

const EVENT: &str =
    "INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type) VALUES ('order', '1', 'x')";
const REGION: &str = "eu-central-1";
const ROLE: &str = "arn:aws:iam::123456789012:role/outbox-relay";
/// `https://kafka.` in Base64, the beginning of each token.
const TOKEN: &str = "aHR0cHM6Ly9rYWZrYS";
/// How long a login lasts before the broker requires another one.
const LOGIN_LASTS_MS: u32 = 20_000;
/// The configuration or the credentials must be fixed.
const CONFIG_ERROR: i32 = 78;

struct Msk {
    kafka: KafkaServer,
    outbox: Outbox,
    files: Files,
    aws: AwsServer,
}

impl Msk {
    async fn start(test: &str) -> Self {
        let (files, authority) = (Files::new(), authority("the authority"));
        files.put("broker.pem", authority.server(&["localhost"]).store_pem());
        files.put("ca.pem", authority.cert_pem());
        let aws = AwsServer::start();
        files.put("keys.properties", keys(&[OWN, ASSUMED]));
        compile_validator(files.folder());
        let kafka = KafkaServer::start_with(settings(&files)).await;
        let mut outbox = Outbox::on(&kafka.cluster(), test).await;
        outbox.create_topic("order", 3).await;
        Self { kafka, outbox, files, aws }
    }

    /// A relay that logs in with the credentials of its container.
    fn relay(&self) -> Relay {
        self.relay_in(self.aws.environment())
    }

    /// A relay that logs in with a role.
    fn with_role(&self) -> Relay {
        self.relay().set_inner("kafka", "aws", "role_arn", ROLE)
    }

    /// A relay with these environment variables.
    fn relay_in(&self, variables: Vec<(&'static str, String)>) -> Relay {
        let relay = self
            .outbox
            .relay()
            .set("kafka", "bootstrap_servers", self.kafka.listener("IAM"))
            .set_kafka_property("security.protocol", "sasl_ssl")
            .set_kafka_property("broker.address.family", "v4")
            .set_kafka_property("ssl.ca.location", self.files.path("ca.pem").to_str().unwrap())
            .set_inner("kafka", "aws", "region", REGION);
        variables.into_iter().fold(relay, |relay, (name, value)| relay.set_environment(name, value))
    }

    /// Checks that a row is relayed, and that not even the most detailed log contains a secret or a token.
    async fn assert_works(&self, what: &str, relay: Relay) {
        run(&self.outbox.client, EVENT).await;
        let relay = relay
            .set("log", "level", "trace")
            .set_kafka_property("debug", "security,broker,conf")
            .set("log", "format", "text");
        let ended = tokio::task::spawn_blocking(move || relay.command(&["run", "--once"])).await.unwrap();
        assert_eq!(ended.code, 0, "{what}: {ended}");
        assert_eq!(self.outbox.unsent().await, 0, "{what}");
        assert_leaks_nothing(what, &ended);
        println!("{what}: works");
    }
}

#[track_caller]
fn assert_leaks_nothing(what: &str, ended: &Ended) {
    for secret in [MARK, TOKEN] {
        assert!(!ended.stdout.contains(secret) && !ended.stderr.contains(secret), "{what}: {ended}");
    }
}

/// The access keys that the brokers know.
fn keys(known: &[Key]) -> String {
    let lines = known.iter();
    lines
        .map(|Key { id, secret, session }| format!("{id}.secret={secret}\n{id}.session={session}\n"))
        .collect()
}

/// All jars of a folder. Only the program `javac` expands an asterisk.
fn class_path(folder: &Path) -> String {
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let jars = files.filter(|file| file.extension().is_some_and(|extension| extension == "jar"));
    jars.map(|jar| jar.to_str().unwrap().to_owned()).collect::<Vec<_>>().join(":")
}

/// The compiler is a module of the Java runtime, but `javac` may not be installed.
fn compile_validator(folder: &Path) {
    let jars = std::env::var("OUTBOX_RELAY_TEST_KAFKA_LIB").expect("run `eval \"$(scripts/services env)\"`");
    let java =
        std::env::var("JAVA_HOME").map_or_else(|_| "java".to_owned(), |home| format!("{home}/bin/java"));
    let output = Command::new(java)
        .args(["-XX:TieredStopAtLevel=1", "-m", "jdk.compiler/com.sun.tools.javac.Main"])
        .args(["-cp", &class_path(Path::new(&jars)), "-d"])
        .arg(folder)
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/java/MskTokens.java"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
}

fn settings(files: &Files) -> Settings {
    let file = |name: &str| files.path(name).to_str().unwrap().to_owned();
    let bearer = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required";
    let lines = format!(
        "listener.name.iam.ssl.keystore.type=PEM
listener.name.iam.ssl.keystore.location={}
listener.name.iam.sasl.enabled.mechanisms=OAUTHBEARER
listener.name.iam.oauthbearer.sasl.jaas.config={bearer};
listener.name.iam.oauthbearer.sasl.server.callback.handler.class=MskTokens
listener.name.iam.oauthbearer.connections.max.reauth.ms={LOGIN_LASTS_MS}
",
        file("broker.pem")
    );
    Settings {
        listeners: vec![("IAM", "SASL_SSL")],
        lines,
        classes: Some(files.folder().to_owned()),
        system_properties: vec![
            format!("-Dtest.msk.region={REGION}"),
            format!("-Dtest.msk.keys={}", file("keys.properties")),
        ],
        ..Settings::default()
    }
}

/// A mistake, the relay that makes it, and the expected texts in the output of `check-config --connect`.
type Mistake = (&'static str, Relay, &'static [&'static str]);

fn mistakes(msk: &Msk) -> Vec<Mistake> {
    let denied = AwsServer::start();
    denied.change(|state| state.sts = Answer::Error(403, "AccessDenied"));
    let expired = AwsServer::start();
    expired.change(|state| state.lifetime = None);
    let silent = AwsServer::start();
    silent.change(|state| state.metadata = Answer::Nothing);
    let role_at =
        |aws: &AwsServer| msk.relay_in(aws.environment()).set_inner("kafka", "aws", "role_arn", ROLE);
    vec![
        (
            "no credentials",
            msk.relay_in(nowhere()),
            &["(reason: token)", "no AWS credentials found", "Attach an IAM role", "[kafka.aws]"],
        ),
        (
            "role that STS denies",
            role_at(&denied),
            &[
                "(reason: token)",
                "cannot be assumed: STS denied the request from arn:aws:sts::",
                "Allow sts:AssumeRole",
            ],
        ),
        (
            "expired credentials",
            msk.relay_in(expired.environment()),
            &["(reason: token)", "the AWS credentials have expired. Renew them"],
        ),
        (
            "endpoint that does not answer",
            msk.relay_in(silent.environment()),
            &["(reason: token)", "no token from AWS: no response within 10s"],
        ),
        (
            "wrong region",
            msk.relay().set_inner("kafka", "aws", "region", "eu-west-1"),
            &["(reason: authentication)", "[kafka.aws]"],
        ),
    ]
}

async fn assert_reported((what, relay, said): Mistake) {
    let ended = checked(relay).await;
    println!("{what}: exit {}\n  {}", ended.code, ended.stdout.trim().replace('\n', "\n  "));
    ended.fails(CONFIG_ERROR, said);
    assert_leaks_nothing(what, &ended);
}

#[tokio::test]
async fn container_and_role_log_in_and_each_mistake_reports_the_cause_and_the_fix() {
    let msk = Msk::start("iam").await;
    // A new broker on a busy machine may need more than the 5 s for which the commands wait, so a relay logs in first.
    run(&msk.outbox.client, EVENT).await;
    let mut relay = msk.relay().start().await;
    msk.outbox.wait_until_drained(STALLED).await;
    assert!(relay.stop().await.success());
    msk.assert_works("container", msk.relay()).await;
    msk.assert_works("assumed role", msk.with_role()).await;
    // Each must log in within the 5 s for which a command waits.
    stream::iter(mistakes(&msk)).map(assert_reported).buffer_unordered(2).collect::<()>().await;

    // The broker no longer knows the key of the container, as after its policy has changed.
    msk.files.put("keys.properties", keys(&[ASSUMED]));
    let says: &[&str] = &["(reason: authentication)", "or [kafka.aws]"];
    assert_reported(("key that the broker does not know", msk.relay(), says)).await;
    msk.assert_works("assumed role", msk.with_role()).await;
    msk.outbox.drop_database().await;
}

#[tokio::test]
async fn tokens_are_renewed_under_a_running_relay_and_lost_credentials_cost_only_time() {
    let msk = Msk::start("iam_renewal").await;
    // Tokens end with the credentials.
    msk.aws.change(|state| state.lifetime = Some(Duration::from_secs(25)));
    // One worker, so that all connections lose their token at the same time.
    let relay = msk.relay().set("relay", "workers", 1).set("admin", "listen", "127.0.0.1:0").start().await;
    let outbox = &msk.outbox;
    let writers = under_load(outbox).await;
    outbox.wait_until_settled(200, STALLED).await;
    // A new broker on a busy machine may have needed more than the 5 s for which a relay waits.
    let outages = || relay.log().matches("kafka unavailable").count();
    let at_start = outages();
    let mut asked = msk.aws.take_requests().len();
    wait_until("a second token is signed", STALLED, async || {
        asked += msk.aws.take_requests().len();
        asked >= 2
    })
    .await;
    outbox.wait_until_settled(200, STALLED).await;
    assert_eq!(relay.not_ready().await, None);
    assert_eq!(outages(), at_start, "{}", relay.log());

    // The endpoint fails. The relay uses the old token until it expires, and then waits.
    msk.aws.change(|state| state.metadata = Answer::Error(403, "Denied"));
    not_ready(&relay, "their source responded with status 403").await;
    assert_eq!(outages(), at_start + 1, "{}", relay.log());
    assert!(relay.log().contains("Fix: check [kafka.aws] and the AWS credentials"), "{}", relay.log());
    msk.aws.change(|state| state.metadata = Answer::Credentials);
    let resumed = outbox.wait_until_resumed(STALLED).await;
    println!("rows are settled again {resumed:.2?} after the credentials were available again");
    outbox.wait_until_settled(200, STALLED).await;
    let log = relay.log();
    for secret in [MARK, TOKEN] {
        assert!(!log.contains(secret), "{secret} in the log");
    }
    verdict(outbox, writers, relay).await;
    msk.outbox.drop_database().await;
}
