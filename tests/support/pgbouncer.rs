//! A private PgBouncer in transaction mode.

use std::fs::{self, File};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

use super::postgres_server::{PostgresServer, as_server_user, folder, free_port};
use super::wait::STALLED;

/// The paths in distributions. `OUTBOX_RELAY_TEST_PGBOUNCER` names another path.
const PROGRAMS: [&str; 2] = ["/usr/sbin/pgbouncer", "/usr/bin/pgbouncer"];
/// The first version that supports prepared statements in transaction mode.
const PREPARES: (u32, u32) = (1, 21);

/// A running pooler. Dropping it stops it.
pub struct PgBouncer {
    port: u16,
    process: Child,
    _folder: TempDir,
}

/// The program and its version, if it is installed.
pub fn installed() -> Option<(String, (u32, u32))> {
    let chosen = std::env::var("OUTBOX_RELAY_TEST_PGBOUNCER").ok();
    let mut programs = chosen.into_iter().chain(PROGRAMS.map(str::to_owned));
    programs.find_map(|program| {
        let said = Command::new(&program).arg("--version").output().ok()?;
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        let mut numbers = said.split_whitespace().nth(1)?.split('.').map(|number| number.parse().ok());
        Some((program, (numbers.next()??, numbers.next()??)))
    })
}

/// Whether this version supports prepared statements.
pub fn prepares(version: (u32, u32)) -> bool {
    version >= PREPARES
}

impl PgBouncer {
    /// Starts a pooler for every database of this server, connecting as this role.
    pub async fn start(server: &PostgresServer, role: &str) -> Self {
        let (program, version) = installed().expect("PgBouncer is installed");
        let folder = folder();
        let port = free_port();
        let address = server.address();
        let (host, server_port) = address.split_once(':').unwrap();
        let prepared = if prepares(version) { "max_prepared_statements = 100" } else { "" };
        let conf = format!(
            "[databases]\n\
             * = host={host} port={server_port} user={role}\n\
             [pgbouncer]\n\
             listen_addr = 127.0.0.1\n\
             listen_port = {port}\n\
             unix_socket_dir =\n\
             auth_type = any\n\
             pool_mode = transaction\n\
             {prepared}\n"
        );
        let file = folder.path().join("pgbouncer.ini");
        fs::write(&file, conf).unwrap();
        let log = File::create(folder.path().join("log")).unwrap();
        let mut command = as_server_user(&program);
        command.arg(&file).stdout(Stdio::null()).stderr(log);
        let mut pooler = Self { port, process: command.spawn().unwrap(), _folder: folder };
        let begun = Instant::now();
        while tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_err() {
            let ended = pooler.process.try_wait().unwrap();
            assert!(ended.is_none() && begun.elapsed() < STALLED, "PgBouncer did not start: {ended:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        pooler
    }

    /// Host and port.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        // An error means that it has already ended.
        _ = self.process.kill();
        _ = self.process.wait();
    }
}
