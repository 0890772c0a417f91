//! The configuration file of a broker.

use std::fmt::Write;
use std::net::SocketAddr;
use std::path::Path;

use super::broker::Port;
use super::{ADMIN, Settings};

/// A JAAS entry: the user that logs in, and the users that a broker accepts.
pub(super) fn login(user: &str, users: &[&str]) -> String {
    let mut text = format!(
        "org.apache.kafka.common.security.plain.PlainLoginModule required username=\"{user}\" password=\"{user}\""
    );
    for user in users {
        write!(text, " user_{user}=\"{user}\"").unwrap();
    }
    text + ";"
}

/// The text of `server.properties`.
pub(super) fn properties(
    settings: &Settings,
    number: usize,
    broker: SocketAddr,
    controller: SocketAddr,
    more: &[(&'static str, Port)],
    folder: &Path,
) -> String {
    let (roles, mut listeners) = if number == 1 {
        ("broker,controller", format!("CLIENT://{broker},CONTROLLER://{controller}"))
    } else {
        ("broker", format!("CLIENT://{broker}"))
    };
    let mut advertised = listeners.clone();
    let mut protocols = String::new();
    for (name, port) in more {
        write!(listeners, ",{name}://{}", port.address).unwrap();
        write!(advertised, ",{name}://localhost:{}", port.address.port()).unwrap();
        let (_, protocol) = settings.listeners.iter().find(|(known, _)| known == name).unwrap();
        write!(protocols, ",{name}:{protocol}").unwrap();
    }
    let protocol = if settings.users.is_empty() { "PLAINTEXT" } else { "SASL_PLAINTEXT" };
    let replicas = settings.brokers.max(1);
    let mut text = format!(
        "process.roles={roles}
node.id={number}
controller.quorum.bootstrap.servers={controller}
controller.listener.names=CONTROLLER
listeners={listeners}
advertised.listeners={advertised}
listener.security.protocol.map=CLIENT:{protocol},CONTROLLER:PLAINTEXT{protocols}
inter.broker.listener.name=CLIENT
log.dirs={}
auto.create.topics.enable=false
broker.session.timeout.ms=5000
broker.heartbeat.interval.ms=500
offsets.topic.num.partitions=1
offsets.topic.replication.factor={replicas}
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor={replicas}
transaction.state.log.min.isr=1
share.coordinator.state.topic.num.partitions=1
share.coordinator.state.topic.replication.factor={replicas}
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
log.cleaner.dedupe.buffer.size=8388608
",
        folder.join("data").display()
    );
    if !settings.users.is_empty() {
        let users = [&[ADMIN], settings.users.as_slice()].concat();
        write!(
            text,
            "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
# The controller's listener accepts connections without a user.
super.users=User:{ADMIN};User:ANONYMOUS
sasl.enabled.mechanisms=PLAIN
sasl.mechanism.inter.broker.protocol=PLAIN
listener.name.client.plain.sasl.jaas.config={}
",
            login(ADMIN, &users)
        )
        .unwrap();
    }
    for (name, value) in &settings.properties {
        writeln!(text, "{name}={value}").unwrap();
    }
    text + &settings.lines
}
