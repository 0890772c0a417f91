//! A separate database for each test, on the server that `scripts/services up` started.

use std::str::FromStr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tokio_postgres::{Client, Config, NoTls};

use super::roles::{Roles, url_of};
use super::wait::STALLED;

/// A new database. A test that passes drops it. A test that fails leaves it for inspection.
#[derive(Clone)]
pub struct Database {
    server: Config,
    name: String,
    url: String,
}

impl Database {
    /// Creates it. Without a server, fails the test with the command that starts one.
    pub async fn create(test: &str) -> Self {
        let url = std::env::var("OUTBOX_RELAY_TEST_POSTGRES_URL").unwrap_or_else(|_| {
            panic!(
                "OUTBOX_RELAY_TEST_POSTGRES_URL is not set: run `scripts/services up`, then \
                 `eval \"$(scripts/services env)\"`"
            )
        });
        Self::create_on(&url, test).await
    }

    /// A database with this encoding.
    pub async fn create_in(test: &str, encoding: &str) -> Self {
        let url = std::env::var("OUTBOX_RELAY_TEST_POSTGRES_URL").expect("set by `scripts/services env`");
        let options = format!("ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0");
        Self::create_with(&url, test, &options).await
    }

    /// A database on a private server of the test.
    pub async fn create_on(url: &str, test: &str) -> Self {
        Self::create_with(url, test, "").await
    }

    async fn create_with(url: &str, test: &str, options: &str) -> Self {
        let server = Config::from_str(url).unwrap();
        let name = unique(test);
        connect(&server).await.batch_execute(&format!("CREATE DATABASE {name} {options}")).await.unwrap();
        let url = with_database(url, &name);
        let database = Self { server, name, url };
        if std::env::var("OUTBOX_RELAY_TEST_PG_VERSION").is_ok_and(|version| version == "14") {
            // As in later versions.
            run(&database.connect().await, "REVOKE CREATE ON SCHEMA public FROM PUBLIC").await;
        }
        database
    }

    /// The same database on a standby of its server.
    pub fn on(&self, url: &str) -> Self {
        let server = Config::from_str(url).unwrap();
        Self { server, name: self.name.clone(), url: with_database(url, &self.name) }
    }

    /// The connection string, for programs that need one.
    pub fn url(&self) -> String {
        self.url.clone()
    }

    /// The connection string of another role, which needs no password.
    pub fn url_of(&self, role: &str) -> String {
        url_of(role, &self.url)
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub async fn connect(&self) -> Client {
        connect(self.server.clone().dbname(&self.name)).await
    }

    /// A connection. Waits until the server accepts one.
    pub async fn connect_patiently(&self) -> Client {
        let begun = Instant::now();
        loop {
            match self.server.clone().dbname(&self.name).connect(NoTls).await {
                Ok((client, connection)) => {
                    tokio::spawn(connection);
                    return client;
                }
                Err(error) if begun.elapsed() > STALLED => panic!("after {STALLED:?}: {error:?}"),
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    }

    /// Creates a role that may only log in, and connects as that role.
    pub async fn connect_as_new_role(&self) -> (String, Client) {
        let role = unique("role");
        let sql = format!("CREATE ROLE {role} LOGIN PASSWORD 'test'");
        self.connect().await.batch_execute(&sql).await.unwrap();
        let client = self.connect_as(&role).await;
        (role, client)
    }

    pub async fn connect_as(&self, role: &str) -> Client {
        connect(self.server.clone().dbname(&self.name).user(role).password("test")).await
    }

    /// For the end of a passed test: drops the database and the roles that `migrate --print-roles` created.
    pub async fn drop_with_roles(self, roles: &Roles) {
        self.drop(&roles.names().each_ref().map(String::as_str)).await;
    }

    /// For the end of a passed test: drops the database and these roles.
    pub async fn drop(self, roles: &[&str]) {
        for role in roles {
            let sql = format!("DROP OWNED BY {role}; DROP ROLE {role}");
            self.connect().await.batch_execute(&sql).await.unwrap();
        }
        let sql = format!("DROP DATABASE {} WITH (FORCE)", self.name);
        connect(&self.server).await.batch_execute(&sql).await.unwrap();
    }
}

/// Statements that insert or delete (`event`) more than this many rows fail as if they had exceeded `statement_timeout`.
pub async fn time_out_above(client: &Client, most: usize, event: &str, table: &str) {
    let rows = if event == "DELETE" { "OLD" } else { "NEW" };
    let sql = format!(
        "CREATE FUNCTION app.takes_too_long() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN
             IF (SELECT count(*) FROM changed) > {most} THEN
                 RAISE 'canceling statement due to statement timeout' USING ERRCODE = 'query_canceled';
             END IF;
             RETURN NULL;
         END $$;
         CREATE TRIGGER takes_too_long AFTER {event} ON {table} REFERENCING {rows} TABLE AS changed
         FOR EACH STATEMENT EXECUTE FUNCTION app.takes_too_long()"
    );
    run(client, &sql).await;
}

/// Runs SQL that must succeed.
pub async fn run(client: &Client, sql: &str) {
    client.batch_execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
}

async fn connect(config: &Config) -> Client {
    let (client, connection) =
        config.connect(NoTls).await.unwrap_or_else(|error| panic!("{:?}: {error:?}", config.get_hosts()));
    tokio::spawn(connection);
    client
}

/// The connection string with another database, which is the path of the URL.
fn with_database(url: &str, name: &str) -> String {
    let (address, options) = url.split_once('?').map_or((url, String::new()), |(a, o)| (a, format!("?{o}")));
    let (scheme, rest) =
        address.split_once("://").expect("OUTBOX_RELAY_TEST_POSTGRES_URL must be a postgres:// URL");
    let authority = rest.split('/').next().unwrap_or(rest);
    format!("{scheme}://{authority}/{name}{options}")
}

/// A name that no other test and no other run uses.
pub fn unique(prefix: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("t{}_{}_{prefix}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}
