//! Payments that are safe to retry, from the request to the balance: an API with idempotency keys, a call to another
//! system, the outbox, the relay, and a consumer with an inbox. README.md explains how to run it.

mod api;
mod balances;
mod charging;
mod client;
mod completer;
mod consumer;
mod database;
mod pay;
mod prepare;
mod provider;
mod wrong;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use tokio::signal::unix::{SignalKind, signal};

use balances::Balances;
use charging::Provider;
use client::Client;
use pay::Shop;
use wrong::Mistake;

const CONNECTIONS: usize = 8;

#[derive(Parser)]
#[command(about = "Example: payments that are safe to retry")]
struct Arguments {
    #[command(subcommand)]
    role: Role,
}

#[derive(Subcommand)]
enum Role {
    /// Create the example's missing tables and its topic
    Prepare {
        #[command(flatten)]
        database: Database,
        #[command(flatten)]
        kafka: Kafka,
    },
    /// A payment provider that is slow, fails and loses answers
    Provider {
        #[arg(long, default_value = "127.0.0.1:8081")]
        listen: String,
        #[command(flatten)]
        database: Database,
    },
    /// The API with the completer
    Api {
        #[arg(long, default_value = "127.0.0.1:8080")]
        listen: String,
        #[arg(long, default_value = "http://127.0.0.1:8081")]
        provider: String,
        /// How long a request is locked while it is in progress
        #[arg(long, default_value_t = 10)]
        lock_seconds: u64,
        #[command(flatten)]
        database: Database,
        #[arg(long)]
        mistake: Vec<Mistake>,
    },
    /// The consumer that maintains the balances
    Consumer {
        #[arg(long, default_value = "consumer-1")]
        name: String,
        /// Time without a heartbeat after which its partitions are reassigned
        #[arg(long, default_value_t = 10_000)]
        session_timeout_ms: u64,
        #[command(flatten)]
        database: Database,
        #[command(flatten)]
        kafka: Kafka,
        #[arg(long)]
        mistake: Vec<Mistake>,
    },
    /// A client that makes payments and retries
    Client {
        #[arg(long, default_value = "client-1")]
        name: String,
        #[arg(long, default_value = "http://127.0.0.1:8080")]
        api: Vec<String>,
        #[arg(long, default_value = "client.journal")]
        journal: PathBuf,
        #[arg(long, default_value_t = 100)]
        payments: u64,
    },
    /// Prepare, provider, API and consumer in one process
    All {
        #[command(flatten)]
        database: Database,
        #[command(flatten)]
        kafka: Kafka,
    },
}

#[derive(Args, Clone)]
struct Database {
    #[arg(long = "database", env = "DATABASE_URL")]
    url: String,
}

#[derive(Args, Clone)]
struct Kafka {
    #[arg(long = "kafka", env = "KAFKA")]
    bootstrap: String,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    Box::pin(Arguments::parse().role.run()).await
}

impl Role {
    async fn run(self) -> anyhow::Result<()> {
        match self {
            Role::Prepare { database, kafka } => prepare::run(&database.url, &kafka.bootstrap).await,
            Role::Provider { listen, database } => {
                provider::serve(&listen, database::pool(&database.url, CONNECTIONS)?).await
            }
            Role::Api { listen, provider, lock_seconds, database, mistake } => {
                let pool = database::pool(&database.url, CONNECTIONS)?;
                let shop = Shop { pool, provider: Provider::new(&provider)?, mistakes: mistake };
                api::serve(&listen, shop, Duration::from_secs(lock_seconds)).await
            }
            Role::Consumer { name, session_timeout_ms, database, kafka, mistake } => {
                let pool = database::pool(&database.url, 1)?;
                let balances = Balances { pool, consumer: name, mistakes: mistake };
                let session_timeout = Duration::from_millis(session_timeout_ms);
                consumer::run(&kafka.bootstrap, session_timeout, &balances, terminated()?).await
            }
            Role::Client { name, api, journal, payments } => {
                Client::new(name, api, &journal)?.run(payments, terminated()?).await
            }
            Role::All { database, kafka } => all(database, kafka).await,
        }
    }
}

async fn all(database: Database, kafka: Kafka) -> anyhow::Result<()> {
    prepare::run(&database.url, &kafka.bootstrap).await?;
    let role = |arguments: &[&str]| Arguments::parse_from(["payments"].iter().chain(arguments)).role;
    let (url, bootstrap) = (database.url.as_str(), kafka.bootstrap.as_str());
    let provider = role(&["provider", "--database", url]);
    let api = role(&["api", "--database", url]);
    let consumer = role(&["consumer", "--database", url, "--kafka", bootstrap]);
    println!("POST http://127.0.0.1:8080/payments");
    // The consumer ends at a signal, and the others end with it.
    tokio::select! {
        ended = Box::pin(provider.run()) => ended,
        ended = Box::pin(api.run()) => ended,
        ended = Box::pin(consumer.run()) => ended,
    }
}

/// Listens from now on, not only from the first poll. The result waits for SIGTERM or SIGINT.
fn terminated() -> anyhow::Result<impl Future<Output = ()>> {
    let (mut term, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! {
            _ = term.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}
