//! Where the commands of a page run: a private PostgreSQL server, so that roles and databases can have the names of the
//! page, private topics on the shared Kafka cluster, and a folder with the files that the page writes.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use tempfile::TempDir;

use super::page::{Block, Kind, fits};
use crate::support::database::unique;
use crate::support::postgres_server::PostgresServer;
use crate::support::topics::Cluster;

/// The timeout of a command of a page, in seconds.
const WITHIN: &str = "180";
/// Topic prefixes in the pages. Each test replaces them with its own.
const TOPICS: [&str; 3] = ["outbox.event.", "events.", "shop."];
const TOOLS: [(&str, &str); 2] = [
    ("kafka-topics.sh", "org.apache.kafka.tools.TopicCommand"),
    ("kafka-console-consumer.sh", "org.apache.kafka.tools.consumer.ConsoleConsumer"),
];

pub struct World {
    pub server: PostgresServer,
    pub cluster: Cluster,
    folder: TempDir,
    /// Names in the page, and their replacements here.
    names: Vec<(String, String)>,
    /// Environment variables of the commands.
    environment: Vec<(&'static str, String)>,
    background: Vec<Child>,
}

impl World {
    pub async fn create(settings: &[(&str, &str)]) -> Self {
        let server = PostgresServer::start(settings).await;
        let cluster = Cluster::shared();
        let own = unique("docs");
        let mut names = vec![
            ("localhost:9092".to_owned(), cluster.bootstrap.clone()),
            ("@localhost/".to_owned(), format!("@{}/", server.address())),
        ];
        names.extend(TOPICS.map(|topics| (topics.to_owned(), format!("{own}.{topics}"))));
        let folder = tempfile::tempdir().unwrap();
        let programs = folder.path().join("programs");
        fs::create_dir(&programs).unwrap();
        symlink(env!("CARGO_BIN_EXE_outbox-relay"), programs.join("outbox-relay")).unwrap();
        let lib = std::env::var("OUTBOX_RELAY_TEST_KAFKA_LIB").expect("OUTBOX_RELAY_TEST_KAFKA_LIB is set");
        for (name, class) in TOOLS {
            let script =
                format!("#!/bin/sh\nexec java -XX:TieredStopAtLevel=1 -cp '{lib}/*' {class} \"$@\"\n");
            fs::write(programs.join(name), script).unwrap();
            fs::set_permissions(programs.join(name), fs::Permissions::from_mode(0o755)).unwrap();
        }
        fs::create_dir(folder.path().join("work")).unwrap();
        Self { server, cluster, folder, names, environment: Vec::new(), background: Vec::new() }
    }

    /// Replaces the names of the page.
    pub fn here(&self, text: &str) -> String {
        self.names.iter().fold(text.to_owned(), |text, (page, here)| text.replace(page, here))
    }

    fn as_in_the_page(&self, text: &str) -> String {
        self.names.iter().fold(text.to_owned(), |text, (page, here)| text.replace(here, page))
    }

    /// The URL of a database on the server.
    pub fn url(&self, role: &str, database: &str) -> String {
        format!("postgres://{role}@{}/{database}", self.server.address())
    }

    fn work(&self) -> PathBuf {
        self.folder.path().join("work")
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        let (host, port) =
            self.server.address().split_once(':').map(|(h, p)| (h.to_owned(), p.to_owned())).unwrap();
        let path = std::env::var("PATH").unwrap();
        command
            .current_dir(self.work())
            .env("PATH", format!("{}:{path}", self.folder.path().join("programs").display()))
            .envs([("PGHOST", host), ("PGPORT", port)])
            .envs([("PGUSER", "postgres"), ("PGDATABASE", "app")])
            .env("OUTBOX_RELAY__ADMIN__LISTEN", "off")
            .envs(self.environment.iter().cloned())
            .stdin(Stdio::null());
        for name in ["NOTIFY_SOCKET", "JOURNAL_STREAM", "CREDENTIALS_DIRECTORY", "OUTBOX_RELAY_CONFIG"] {
            command.env_remove(name);
        }
        command
    }

    /// For a page that lets `init` write the configuration: the events go to the topics of this test.
    pub fn use_own_topics(&mut self) {
        self.environment.push(("OUTBOX_RELAY__OUTBOX__TOPIC", self.here("events.{aggregate_type}")));
    }

    /// Runs a block. It must succeed and print what the page states.
    pub async fn run(&mut self, page: &str, block: &Block) {
        let text = self.here(&block.text);
        let mut command = match &block.kind {
            Kind::Elsewhere => return,
            Kind::File(name) => return fs::write(self.work().join(name), text).unwrap(),
            Kind::Background => return self.start(&text),
            Kind::Shell => {
                let mut command = self.command("timeout");
                command.args([WITHIN, "bash", "-eu", "-o", "pipefail", "-c", &text]);
                command
            }
            Kind::Sql => {
                let file = self.folder.path().join("block.sql");
                fs::write(&file, text).unwrap();
                let mut command = self.command("timeout");
                command.args([WITHIN, "psql", "-X", "-v", "ON_ERROR_STOP=1", "-f"]).arg(file);
                command
            }
        };
        let Output { status, stdout, stderr } =
            tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
        let [stdout, stderr] = [stdout, stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        let place = format!("docs/{page}:{}", block.line);
        assert!(status.success(), "{place}: {status}\n{}\n{stdout}\n{stderr}{}", block.text, self.logs());
        if let Some(wanted) = &block.prints {
            let printed = self.as_in_the_page(&stdout);
            assert!(fits(wanted, &printed), "{place} prints\n{printed}\nand not\n{wanted}\n{stderr}");
        }
    }

    /// Starts one command, which runs until the end of the page.
    fn start(&mut self, text: &str) {
        assert_eq!(text.lines().count(), 1, "a background block must have one command: {text}");
        let log =
            fs::File::create(self.folder.path().join(format!("{}.log", self.background.len()))).unwrap();
        let mut command = self.command("bash");
        command.args(["-c", &format!("exec {text}")]).stdout(log.try_clone().unwrap()).stderr(log);
        self.background.push(command.spawn().unwrap());
    }

    fn logs(&self) -> String {
        let log =
            |number| fs::read_to_string(self.folder.path().join(format!("{number}.log"))).unwrap_or_default();
        (0..self.background.len()).map(log).collect()
    }

    /// Creates a topic whose name in the page is `name`.
    pub async fn create_topic(&self, name: &str, partitions: i32) -> String {
        let topic = self.here(name);
        self.cluster.create(&topic, partitions, &[]).await;
        topic
    }

    /// A prerequisite of pages: a database `app`.
    pub async fn with_database(&mut self) {
        let text = "psql postgres -c 'CREATE DATABASE app'".to_owned();
        let block = Block { line: 0, kind: Kind::Shell, text, prints: None };
        self.run("prerequisites of a page", &block).await;
    }

    /// A prerequisite of pages: a database `app` with an outbox, its roles, and a configuration.
    pub async fn with_outbox(&mut self) {
        self.with_database().await;
        let text = "printf '[postgres]\\nurl = \"postgres://outbox_relay@localhost/app\"\\n[kafka]\\nbootstrap_servers = \
                    \"localhost:9092\"\\n[outbox]\\ntopic = \"events.{aggregate_type}\"\\n' > config.toml\n\
                    OUTBOX_RELAY__POSTGRES__URL=postgres://postgres@localhost/app outbox-relay migrate --config config.toml\n\
                    outbox-relay migrate --config config.toml --print-roles | psql -q -v ON_ERROR_STOP=1";
        let block = Block { line: 0, kind: Kind::Shell, text: text.to_owned(), prints: None };
        self.run("prerequisites of a page", &block).await;
    }

    /// Stops the background commands with SIGTERM.
    pub async fn end(mut self) {
        for mut child in self.background.drain(..) {
            rustix::process::kill_process(
                rustix::process::Pid::from_child(&child),
                rustix::process::Signal::TERM,
            )
            .unwrap();
            let status = tokio::task::spawn_blocking(move || child.wait().unwrap()).await.unwrap();
            assert!(status.success(), "{status}");
        }
        self.delete_topics().await;
    }

    async fn delete_topics(&self) {
        use rdkafka::consumer::{BaseConsumer, Consumer};
        let client: BaseConsumer = self.cluster.client().create().unwrap();
        let metadata = client.fetch_metadata(None, std::time::Duration::from_secs(20)).unwrap();
        let own = TOPICS.map(|topics| self.here(topics));
        for topic in metadata.topics() {
            if own.iter().any(|own| topic.name().starts_with(own.as_str())) {
                self.cluster.delete(topic.name()).await;
            }
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for child in &mut self.background {
            // An error means that it has already ended.
            _ = child.kill();
            _ = child.wait();
        }
    }
}
