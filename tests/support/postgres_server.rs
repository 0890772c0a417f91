//! A private PostgreSQL server for one test, which the test can stop, crash, copy and promote.
//!
//! It uses the programs that `scripts/services` unpacked. A server has a temporary directory and a free loopback port. It
//! ends when its value is dropped, or when the thread that started it ends.

use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::time::Duration;
use tempfile::TempDir;
use tokio_postgres::{Client, NoTls};

use super::database::run;
use super::wait::{STALLED, wait_until};

const LOG_LINES_SHOWN: usize = 40;

/// Small, and fast rather than durable. Most tests need only commits that survive a crash of the server, not of the
/// machine. `fsync` makes no difference to a killed process. It only makes commits slower.
const SETTINGS: &[(&str, &str)] = &[
    ("listen_addresses", "'127.0.0.1'"),
    ("unix_socket_directories", "''"),
    ("shared_buffers", "'16MB'"),
    ("max_connections", "60"),
    ("max_prepared_transactions", "10"),
    ("max_wal_size", "'128MB'"),
    ("wal_keep_size", "'64MB'"),
    ("fsync", "off"),
    ("log_line_prefix", "'%m [%p] %a '"),
];

/// How to stop a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shutdown {
    /// Ends the sessions, rolls back their transactions, and writes a checkpoint.
    Fast,
    /// Like a crash, with recovery at the next start. The sessions get a message.
    Immediate,
    /// SIGKILL for every process of the server. Clients notice only that their sockets are closed.
    Crash,
}

/// A server that runs or has run. Dropping it stops it and deletes its data.
pub struct PostgresServer {
    folder: TempDir,
    /// The data directory. In `folder`, unless the test chose another place.
    data: PathBuf,
    port: u16,
    process: Option<Child>,
}

impl PostgresServer {
    /// Starts a new server with these settings of postgresql.conf. Use `("fsync", "on")` for tests about commits.
    pub async fn start(settings: &[(&str, &str)]) -> Self {
        let folder = folder();
        let data = folder.path().join("data");
        Self::start_in(folder, data, settings).await
    }

    /// Starts a server with its data in this folder, which must exist and be empty.
    pub async fn start_at(data: &Path, settings: &[(&str, &str)]) -> Self {
        Self::start_in(folder(), data.to_owned(), settings).await
    }

    async fn start_in(folder: TempDir, data: PathBuf, settings: &[(&str, &str)]) -> Self {
        fs::create_dir_all(&data).unwrap();
        give_to_server_user(&data).unwrap();
        let copied = as_server_user("/bin/cp")
            .args(["--archive", "--reflink=auto"])
            .arg(Path::new(&variable("OUTBOX_RELAY_TEST_PG_EMPTY")).join("."))
            .arg(&data)
            .output()
            .unwrap();
        assert!(copied.status.success(), "cp: {}", String::from_utf8_lossy(&copied.stderr));
        let line = |(name, value): &(&str, &str)| format!("{name} = {value}\n");
        let mut conf = fs::read_to_string(data.join("postgresql.conf")).unwrap();
        conf.extend(SETTINGS.iter().chain(settings).map(line));
        fs::write(data.join("postgresql.conf"), conf).unwrap();
        let mut server = Self { folder, data, port: free_port(), process: None };
        server.start_again().await;
        server
    }

    /// The URL of its database `postgres`, for its superuser `postgres` without a password.
    pub fn url(&self) -> String {
        format!("postgres://postgres@{}/postgres", self.address())
    }

    /// Host and port, as in [`PostgresServer::url`]. They stay the same after restarts.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub fn data(&self) -> &Path {
        &self.data
    }

    /// A connection to its database `postgres`.
    pub async fn connect(&self) -> Client {
        self.try_connect().await.unwrap_or_else(|error| panic!("{}: {error:?}\n{}", self.url(), self.log()))
    }

    async fn try_connect(&self) -> Result<Client, tokio_postgres::Error> {
        let (client, connection) = tokio_postgres::connect(&self.url(), NoTls).await?;
        tokio::spawn(connection);
        Ok(client)
    }

    /// The last lines of the log.
    pub fn log(&self) -> String {
        let log = fs::read(self.folder.path().join("log")).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..].join("\n")
    }

    /// Everything that it has logged.
    pub fn whole_log(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.folder.path().join("log")).unwrap()).into_owned()
    }

    /// Stops the server and waits until it has ended.
    pub fn stop(&mut self, how: Shutdown) {
        let Some(mut postmaster) = self.process.take() else { return };
        if postmaster.try_wait().unwrap().is_some() {
            return; // it has ended by itself
        }
        let pid = Pid::from_child(&postmaster);
        match how {
            Shutdown::Fast => kill_process(pid, Signal::INT).unwrap(),
            Shutdown::Immediate => kill_process(pid, Signal::QUIT).unwrap(),
            Shutdown::Crash => {
                // While it is stopped, it starts no more children and reaps none, so that the list is complete. The
                // signal may take effect late.
                kill_process(pid, Signal::STOP).unwrap();
                wait_for_state(pid, "T");
                let children = children(pid);
                for child in &children {
                    _ = kill_process(*child, Signal::KILL); // the child may already have ended
                }
                // The next server can start only after all processes have released the shared memory of this one.
                for child in children {
                    wait_for_state(child, "ZX");
                }
                kill_process(pid, Signal::KILL).unwrap();
            }
        }
        postmaster.wait().unwrap();
    }

    /// Starts a stopped server on the same port, and waits until it accepts connections.
    pub async fn start_again(&mut self) {
        self.launch();
        let begun = std::time::Instant::now();
        while self.try_connect().await.is_err() {
            let ended = self.process.as_mut().and_then(|process| process.try_wait().unwrap());
            assert!(ended.is_none(), "the server ended: {ended:?}\n{}", self.log());
            assert!(begun.elapsed() < STALLED, "the server did not start\n{}", self.log());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Starts a stopped server without waiting.
    pub fn launch(&mut self) {
        assert!(self.process.is_none(), "the server is running");
        let log = File::options().create(true).append(true).open(self.folder.path().join("log")).unwrap();
        let mut command = as_server_user("postgres");
        command.arg("-D").arg(&self.data).args(["-p", &self.port.to_string()]);
        self.process = Some(command.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap());
    }

    /// Stops the server and starts it again.
    pub async fn restart(&mut self, how: Shutdown) {
        self.stop(how);
        self.start_again().await;
    }

    /// Makes the server read its configuration files again.
    pub fn reload(&self) {
        let postmaster = self.process.as_ref().expect("a running server");
        kill_process(Pid::from_child(postmaster), Signal::HUP).unwrap();
    }

    /// Creates a standby: a base backup that follows this server by asynchronous streaming replication.
    pub async fn standby(&self) -> PostgresServer {
        let client = self.connect().await;
        let version: String = client.query_one("SHOW server_version_num", &[]).await.unwrap().get(0);
        let (start, stop) = if version.parse::<u32>().unwrap() >= 150_000 {
            ("pg_backup_start('standby', true)", "pg_backup_stop(false)")
        } else {
            ("pg_start_backup('standby', true, false)", "pg_stop_backup(false, false)")
        };
        run(&client, &format!("SELECT {start}")).await;
        let folder = folder();
        let data = folder.path().join("data");
        copy_data(&self.data, &data).unwrap();
        let label = client.query_one(&format!("SELECT labelfile FROM {stop}"), &[]).await.unwrap();
        let follows = format!(
            "primary_conninfo = 'host=127.0.0.1 port={} user=postgres application_name=standby'\n",
            self.port
        );
        for (file, text) in [
            ("backup_label", label.get(0)),
            ("standby.signal", ""),
            ("postgresql.auto.conf", follows.as_str()),
        ] {
            fs::write(data.join(file), text).unwrap();
            give_to_server_user(&data.join(file)).unwrap();
        }
        let mut standby = Self { folder, data, port: free_port(), process: None };
        standby.start_again().await;
        standby
    }

    /// Waits until a standby of this server has replayed everything that has been written so far.
    pub async fn wait_until_replayed(&self, standby: &PostgresServer) {
        let (primary, standby) = (self.connect().await, standby.connect().await);
        let position = primary.query_one("SELECT pg_current_wal_insert_lsn()::text", &[]).await.unwrap();
        let position: String = position.get(0);
        let sql = format!("SELECT coalesce(pg_last_wal_replay_lsn() >= '{position}', false)");
        wait_until("the standby has replayed everything", STALLED, async || {
            standby.query_one(&sql, &[]).await.unwrap().get(0)
        })
        .await;
    }

    /// Stops replication to this standby.
    pub async fn detach(&self) {
        let client = self.connect().await;
        run(&client, "ALTER SYSTEM SET primary_conninfo = ''").await;
        run(&client, "SELECT pg_reload_conf()").await;
        let sql = "SELECT count(*) = 0 FROM pg_stat_wal_receiver";
        wait_until("the standby receives nothing", STALLED, async || {
            client.query_one(sql, &[]).await.unwrap().get(0)
        })
        .await;
    }

    /// Turns a stopped server into a standby without a primary, from its next start on.
    pub fn become_standby(&self) {
        let signal = self.data.join("standby.signal");
        fs::write(&signal, "").unwrap();
        give_to_server_user(&signal).unwrap();
    }

    /// Makes a standby a primary.
    pub async fn promote(&self) {
        let promoted = self.connect().await.query_one("SELECT pg_promote(true, 60)", &[]).await.unwrap();
        assert!(promoted.get::<_, bool>(0), "the standby was not promoted\n{}", self.log());
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- log of the server at {}, its last lines\n{}", self.address(), self.log());
        }
        self.stop(Shutdown::Immediate);
    }
}

/// A folder that the user of the server can access.
pub fn folder() -> TempDir {
    let open = fs::Permissions::from_mode(0o755);
    tempfile::Builder::new().prefix("outbox-relay-postgres-").permissions(open).tempdir().unwrap()
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| {
        panic!("{name} is not set: run `scripts/services up`, then `eval \"$(scripts/services env)\"`")
    })
}

/// The system user that runs PostgreSQL, which refuses to run as root. `None` if the tests do not run as root.
static SERVER_USER: LazyLock<Option<(u32, u32)>> = LazyLock::new(|| {
    let user = variable("OUTBOX_RELAY_TEST_PG_USER");
    let id = |flag: &str| {
        let said = Command::new("id").args([flag, &user]).output().unwrap();
        String::from_utf8_lossy(&said.stdout).trim().parse().unwrap()
    };
    (!user.is_empty()).then(|| (id("-u"), id("-g")))
});

pub fn give_to_server_user(path: &Path) -> io::Result<()> {
    let Some((user, group)) = *SERVER_USER else { return Ok(()) };
    std::os::unix::fs::lchown(path, Some(user), Some(group))
}

/// One of PostgreSQL's programs, or another program by its full path, run as that user. It gets SIGQUIT, an immediate
/// shutdown, when the thread that started it ends, so that a killed test leaves no server behind.
pub fn as_server_user(program: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "QUIT"]);
    if let Some((user, group)) = *SERVER_USER {
        command.args(["--reuid", &user.to_string(), "--regid", &group.to_string(), "--clear-groups"]);
    }
    command.arg(Path::new(&variable("OUTBOX_RELAY_TEST_PG_BIN")).join(program));
    command.current_dir("/").stdin(Stdio::null());
    command
}

/// A free port below the range from which the kernel chooses ports for outgoing connections, because it must still be
/// free when the server restarts.
pub fn free_port() -> u16 {
    loop {
        let port = fastrand::u16(20_000..32_000);
        if std::net::TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

fn children(parent: Pid) -> Vec<Pid> {
    let pid = parent.as_raw_nonzero();
    let listed = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    listed.split_whitespace().filter_map(|child| Pid::from_raw(child.parse().unwrap())).collect()
}

/// Waits until the process is in one of these states, or gone. The states are letters: see proc_pid_stat(5). Unlike an
/// empty command line, a zombie has released its memory.
fn wait_for_state(process: Pid, states: &str) {
    let file = format!("/proc/{}/stat", process.as_raw_nonzero());
    while fs::read_to_string(&file).is_ok_and(|stat| !has_state(&stat, states)) {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The state follows the name of the program, which is in parentheses and can contain any character.
fn has_state(stat: &str, states: &str) -> bool {
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(|state| states.contains(state)))
}

/// Copies the data of a running server, except files of the running instance.
fn copy_data(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir(to)?;
    fs::set_permissions(to, fs::Permissions::from_mode(0o700))?;
    give_to_server_user(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (source, copy) = (entry.path(), to.join(entry.file_name()));
        let name = entry.file_name();
        if name == "postmaster.pid" || name == "postmaster.opts" {
            continue;
        }
        if entry.file_type()?.is_dir() {
            copy_data(&source, &copy)?;
        } else if from.file_name().is_none_or(|folder| folder != "pg_wal") {
            match fs::copy(&source, &copy) {
                Ok(_) => give_to_server_user(&copy)?,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {} // deleted meanwhile
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}
