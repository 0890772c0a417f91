//! The roles of a test's outbox, created by the output of `outbox-relay migrate --print-roles`, so that tests run with
//! the privileges that users grant.

use outbox_relay::postgres::access::roles::{self, RelayRole};
use outbox_relay::postgres::table::Module;
use outbox_relay::postgres::table::TableName;
use tokio_postgres::Client;

use super::database::{run, unique};

/// The superuser's URL of a database, changed to another role.
pub fn url_of(role: &str, url: &str) -> String {
    let superuser = "postgres://postgres@";
    assert!(url.starts_with(superuser), "{url}");
    url.replacen(superuser, &format!("postgres://{role}@"), 1)
}

/// The printed roles, and an operator. They need no password.
#[derive(Clone, Debug)]
pub struct Roles(RelayRole);

impl Roles {
    /// Creates them for the outbox of this name in the client's database.
    pub async fn create(client: &Client, table: &TableName) -> Self {
        let roles = Self(unique("relay").parse().unwrap());
        run(client, &roles::print(table, &roles.0, true)).await;
        let (person, group) = (roles.on_call(), roles.0.operator());
        run(client, &format!("CREATE ROLE {person} LOGIN IN ROLE {group}")).await;
        roles
    }

    /// Grants the privileges on the optional column `topic`.
    pub async fn grant_topic_column(&self, client: &Client, table: &TableName) {
        run(client, &roles::print(table, &self.0, true)).await;
    }

    /// The role of the relay.
    pub fn relay(&self) -> &str {
        self.0.relay()
    }

    /// The group of the operators.
    pub fn operator(&self) -> String {
        self.0.operator()
    }

    /// The group of the monitors.
    pub fn monitor(&self) -> String {
        self.0.monitor()
    }

    /// The group of the writers.
    pub fn writer(&self) -> String {
        self.0.writer()
    }

    /// The group of a module, which exists if the roles were printed after the module was installed.
    pub fn module(&self, module: Module) -> String {
        self.0.module(module)
    }

    /// A member of the operators.
    pub fn on_call(&self) -> String {
        format!("{}_on_call", self.0)
    }

    /// All of them, for dropping.
    pub fn names(&self) -> [String; 5] {
        let Self(role) = self;
        [self.on_call(), role.relay().to_owned(), role.operator(), role.monitor(), role.writer()]
    }
}
