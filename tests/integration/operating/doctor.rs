//! `outbox-relay doctor` on real servers. Each test causes a problem, checks the finding, runs its remedy, and checks
//! that the finding is gone.

mod bounded;
mod events;
mod page;
mod pooler;
mod privileges;
mod schema;
mod servers;
mod topic_template;
mod topics;
mod vacuum;

use outbox_relay::cli::doctor::all;
use postgres::access::grants::relay_grants;
use serde_json::Value;

use crate::support::database::run;
use crate::support::outbox::Outbox;
use crate::support::relay::Relay;

/// An outbox, and a relay that connects with only the necessary privileges.
pub struct World {
    pub outbox: Outbox,
    pub role: String,
    pub relay: Relay,
}

/// The findings of one run of `doctor --json`.
pub struct Found {
    pub exit: i32,
    pub json: Value,
}

impl World {
    pub async fn new(test: &str) -> World {
        World::of(Outbox::without_topics(test).await).await
    }

    pub async fn of(outbox: Outbox) -> World {
        let (role, _) = outbox.database.connect_as_new_role().await;
        run(&outbox.client, &relay_grants(&"app.outbox".parse().unwrap(), &role)).await;
        let url = outbox.database.url().replacen("postgres@", &format!("{role}:test@"), 1);
        let relay = outbox.relay().set("postgres", "url", url);
        World { outbox, role, relay }
    }

    pub fn doctor(&self) -> Found {
        Found::by(&self.relay)
    }

    pub async fn sql(&self, sql: &str) {
        run(&self.outbox.client, sql).await;
    }

    /// Causes the problem, expects the finding, runs its remedy, and expects no finding.
    pub async fn found_and_fixed(&self, damage: &str, code: &str, problem: &str) {
        self.sql(damage).await;
        let remedy = self.doctor().has(code, problem);
        self.fix(&remedy).await;
        self.doctor().has_not(code);
    }

    /// Runs the statements of a remedy one by one. The text after the last semicolon is not SQL.
    pub async fn fix(&self, remedy: &str) {
        for statement in remedy.split_inclusive(';').filter(|part| part.ends_with(';')) {
            self.sql(statement).await;
        }
    }

    pub async fn drop(self) {
        for topic in self.outbox.topics() {
            self.outbox.cluster.delete(&topic).await;
        }
        self.drop_database().await;
    }

    /// For the end of a passed test whose Kafka cluster is private.
    pub async fn drop_database(self) {
        drop(self.outbox.client);
        self.outbox.database.drop(&[&self.role]).await;
    }
}

impl Found {
    pub fn by(relay: &Relay) -> Found {
        let ended = relay.clone().command(&["doctor", "--json"]);
        let json = serde_json::from_str(&ended.stdout).unwrap_or_else(|error| panic!("{error}: {ended}"));
        let found = Found { exit: ended.code, json };
        let errors = found.json["errors"].as_u64().unwrap();
        assert_eq!(found.exit, i32::from(errors > 0), "{ended}");
        for finding in found.findings() {
            let fields: Vec<&str> = finding.as_object().unwrap().keys().map(String::as_str).collect();
            assert_eq!(fields, ["code", "means", "place", "problem", "remedy", "severity"], "{ended}");
        }
        found
    }

    pub fn codes(&self) -> Vec<&str> {
        self.findings().map(|finding| finding["code"].as_str().unwrap()).collect()
    }

    fn findings(&self) -> impl Iterator<Item = &Value> {
        self.json["findings"].as_array().unwrap().iter()
    }

    /// Asserts that there is such a finding, with the severity and the meaning of its code. Returns the remedy.
    #[track_caller]
    pub fn has(&self, word: &str, problem: &str) -> String {
        let code = all().find(|code| code.word == word);
        let code = code.unwrap_or_else(|| panic!("{word} is not a code"));
        let of_code = self.findings().filter(|finding| finding["code"] == word);
        let found = of_code.filter(|finding| finding["problem"].as_str().unwrap().contains(problem));
        let found: Vec<_> = found.collect();
        assert!(!found.is_empty(), "{word}, {problem:?}: {:#}", self.json);
        assert_eq!(found[0]["severity"], code.severity.word(), "{:#}", self.json);
        assert_eq!(found[0]["means"], code.means, "{:#}", self.json);
        found[0]["remedy"].as_str().unwrap().to_owned()
    }

    #[track_caller]
    pub fn has_not(&self, word: &str) {
        assert!(!self.codes().contains(&word), "{word}: {:#}", self.json);
    }
}

/// Inserts a valid event.
pub const EVENT: &str = "INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', '1', 'Placed', '{}')";

#[tokio::test]
async fn healthy_outbox_has_no_findings_except_its_single_broker() {
    let mut world = World::new("doctor_good").await;
    let nothing = world.doctor();
    assert_eq!((nothing.codes(), nothing.exit), (vec![], 0), "{:#}", nothing.json);
    let text = world.relay.clone().command(&["doctor"]);
    assert!(text.succeeds().contains("app.outbox: no problems found ("), "{text}");

    world.outbox.create_topic("order", 1).await;
    world.sql(EVENT).await;
    let found = world.doctor();
    assert_eq!((found.codes(), found.exit), (vec!["replication-factor"], 0), "{:#}", found.json);
    let text = world.relay.clone().command(&["doctor"]);
    let topic = world.outbox.topic("order");
    for part in [
        &format!("warning  replication-factor  topic {topic}\n"),
        "         its replication factor is 1\n",
        "         means: there is one copy of each record",
        "         fix:   run kafka-reassign-partitions.sh",
        "app.outbox: 0 errors, 1 warning, 0 notes\n",
    ] {
        assert!(text.succeeds().contains(part), "{part}: {text}");
    }
    world.drop().await;
}
