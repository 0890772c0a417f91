//! A proxy for PostgreSQL that a test can cut, slow down and turn into a black hole, and that can act on one message of
//! the protocol.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{broadcast, oneshot, watch};
use tokio::task::{JoinHandle, JoinSet};

/// SSLRequest and GSSENCRequest, which come before the first message. Both are answered with one letter.
const ENCRYPTION: [u32; 2] = [80_877_103, 80_877_104];

/// The state of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    Open,
    /// Every message except rows is delayed by this time, in either direction.
    Slow(Duration),
    /// Every row is delayed by this time.
    SlowRows(Duration),
    /// Nothing passes in either direction: no message, no end of a connection, and no reset. This is what a vanished
    /// host looks like.
    BlackHole,
    /// New connections are refused. Open connections stay.
    Refused,
}

/// The message to act on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// The relay's COMMIT of a settlement, before it reaches the server.
    Commit,
    /// The server's answer to it.
    CommitReply,
    /// The first row of a result whose rows have at least this size, before it reaches the relay.
    Row(usize),
}

/// What happens to the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// It passes. The test is only notified.
    Pass,
    /// It is lost, and its connection is closed on both sides.
    Cut,
    /// It is held until the connection is cut, together with everything after it in its direction.
    Hold,
}

#[derive(Clone, Copy, Debug)]
enum Order {
    Cut,
    HalfOpen,
}

struct Rule {
    at: At,
    act: Act,
    met: oneshot::Sender<()>,
}

struct Shared {
    server: String,
    network: watch::Receiver<Network>,
    orders: broadcast::Sender<Order>,
    rules: Mutex<Vec<Rule>>,
}

/// Forwards one loopback port to a server. Dropping it cuts all connections.
pub struct PostgresProxy {
    address: SocketAddr,
    network: watch::Sender<Network>,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

impl PostgresProxy {
    /// Forwards to this host and port of a server.
    pub async fn to(server: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (network, watched) = watch::channel(Network::Open);
        let (orders, _) = broadcast::channel(16);
        let shared =
            Arc::new(Shared { server: server.to_owned(), network: watched, orders, rules: Mutex::default() });
        let task = tokio::spawn(serve(listener, Arc::clone(&shared)));
        Self { address, network, shared, task }
    }

    /// Host and port.
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// The URL of a database through the proxy, given the URL of the database itself. Without TLS.
    pub fn url(&self, url: &str) -> String {
        let separator = if url.contains('?') { '&' } else { '?' };
        format!("{}{separator}sslmode=disable", url.replace(&self.shared.server, &self.address()))
    }

    pub fn set_network(&self, network: Network) {
        self.network.send_replace(network);
    }

    /// Closes every connection on both sides. New connections are accepted.
    pub fn cut(&self) {
        _ = self.shared.orders.send(Order::Cut); // an error means that there is no connection
    }

    /// Closes every connection on the relay's side only. The server does not notice.
    pub fn half_open(&self) {
        _ = self.shared.orders.send(Order::HalfOpen);
    }

    /// Acts once on the next such message of any connection. The receiver is notified when it arrives.
    pub fn on(&self, at: At, act: Act) -> oneshot::Receiver<()> {
        let (met, hears) = oneshot::channel();
        self.shared.rules.lock().unwrap().push(Rule { at, act, met });
        hears
    }
}

impl Drop for PostgresProxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        let client = listener.accept().await.unwrap().0;
        while connections.try_join_next().is_some() {}
        let network = *shared.network.borrow();
        if network != Network::Refused {
            connections.spawn(forward(client, Arc::clone(&shared)));
        }
    }
}

async fn forward(client: TcpStream, shared: Arc<Shared>) {
    let mut orders = shared.orders.subscribe();
    let mut open = shared.network.clone();
    let connected = async {
        // An error means that the test has ended.
        _ = open.wait_for(|network| *network != Network::BlackHole).await;
        TcpStream::connect(&shared.server).await
    };
    let server = tokio::select! {
        server = connected => server,
        _ = orders.recv() => return,
    };
    // The server is unavailable, so clients of the proxy are refused, too.
    let Ok(server) = server else { return };
    client.set_nodelay(true).unwrap();
    server.set_nodelay(true).unwrap();
    let (client_reads, client_writes) = client.into_split();
    let (server_reads, server_writes) = server.into_split();
    let settled = AtomicBool::new(false);
    let up = Pump::new(client_reads, &shared, &settled, true);
    let down = Pump::new(server_reads, &shared, &settled, false);
    let (mut to_server, mut to_client) = (server_writes, client_writes);
    let order = {
        let (up, down) = (Box::pin(up.run(&mut to_server)), Box::pin(down.run(&mut to_client)));
        tokio::select! {
            _ = up => Order::Cut,
            _ = down => Order::Cut,
            Ok(order) = orders.recv() => order,
            else => Order::Cut,
        }
    };
    if let Order::HalfOpen = order {
        drop(to_client);
        // The server's data is never read, but the connection stays open until the test ends or cuts it.
        while !matches!(orders.recv().await, Ok(Order::Cut) | Err(broadcast::error::RecvError::Closed)) {}
        drop(to_server);
    }
}

/// One direction of a connection.
struct Pump<'a> {
    from: OwnedReadHalf,
    shared: &'a Shared,
    /// The last statement of the connection was a settlement.
    settled: &'a AtomicBool,
    /// Whether this is the direction from the relay to the server.
    relays: bool,
    /// The prepared statements of settlements.
    settlements: HashSet<Vec<u8>>,
    /// Whether the last bound statement is one of them.
    settles: bool,
}

impl<'a> Pump<'a> {
    fn new(from: OwnedReadHalf, shared: &'a Shared, settled: &'a AtomicBool, relays: bool) -> Self {
        Pump { from, shared, settled, relays, settlements: HashSet::new(), settles: false }
    }

    async fn run(mut self, to: &mut OwnedWriteHalf) -> std::io::Result<()> {
        let ended = self.pass_all(to).await;
        // The end of a connection is also something that a black hole hides.
        self.passable().await;
        ended
    }

    async fn pass_all(&mut self, to: &mut OwnedWriteHalf) -> std::io::Result<()> {
        let mut typed = !self.relays;
        loop {
            let mut message = Vec::new();
            if typed {
                message.push(self.from.read_u8().await?);
            }
            let length = self.from.read_u32().await?;
            message.extend(length.to_be_bytes());
            let body = message.len();
            message.resize(body + length as usize - 4, 0);
            self.from.read_exact(&mut message[body..]).await?;
            if !typed && message.len() == 8 && ENCRYPTION.map(u32::to_be_bytes).contains(&last_four(&message))
            {
                return Err(std::io::Error::other("this proxy does not support TLS"));
            }
            let kind = typed.then_some(message[0]);
            typed = true;
            match self.acted_on(kind, &message[body..]) {
                Some(Act::Cut) => return Ok(()),
                Some(Act::Hold) => std::future::pending().await,
                Some(Act::Pass) | None => {}
            }
            self.passable().await;
            let network = *self.shared.network.borrow();
            match network {
                Network::Slow(time) if kind != Some(b'D') => tokio::time::sleep(time).await,
                Network::SlowRows(time) if kind == Some(b'D') => tokio::time::sleep(time).await,
                _ => {}
            }
            to.write_all(&message).await?;
        }
    }

    async fn passable(&mut self) {
        // An error means that the test has ended.
        _ = self.shared.network.clone().wait_for(|network| *network != Network::BlackHole).await;
    }

    /// Tracks the state of the connection, and takes the first rule that matches the message.
    fn acted_on(&mut self, kind: Option<u8>, body: &[u8]) -> Option<Act> {
        let at = match (self.relays, kind?) {
            (true, b'P') => {
                let (name, sql) = name_and_rest(body);
                let sql = sql.trim_ascii_start();
                // The statement that marks rows returns how many have the mark.
                if sql.starts_with(b"DELETE ") || sql.starts_with(b"WITH changed AS (") {
                    self.settlements.insert(name.to_vec());
                }
                return None;
            }
            (true, b'B') => {
                let (_portal, rest) = name_and_rest(body);
                self.settles = self.settlements.contains(name_and_rest(rest).0);
                if self.settles {
                    self.settled.store(true, Ordering::Relaxed);
                }
                return None;
            }
            // The COMMIT may be sent before the settlement is answered.
            (true, b'Q') if std::mem::take(&mut self.settles) && body.ends_with(b"COMMIT\0") => At::Commit,
            (false, b'C') if body == b"COMMIT\0" && self.settled.swap(false, Ordering::Relaxed) => {
                At::CommitReply
            }
            // A SELECT before COMMIT, which would fail in an aborted transaction, is part of the settlement.
            (false, b'C') if body.starts_with(b"SELECT ") => return None,
            (false, b'C') => {
                let settles = body.starts_with(b"UPDATE ") || body.starts_with(b"DELETE ");
                self.settled.store(settles, Ordering::Relaxed);
                return None;
            }
            (false, b'D') => At::Row(body.len()),
            _ => return None,
        };
        let mut rules = self.shared.rules.lock().unwrap();
        let fits = |rule: &Rule| match (rule.at, at) {
            (At::Row(least), At::Row(bytes)) => bytes >= least,
            (wanted, found) => wanted == found,
        };
        let rule = rules.iter().position(fits)?;
        let rule = rules.remove(rule);
        _ = rule.met.send(()); // an error means that the test does not wait for it
        Some(rule.act)
    }
}

/// A name that ends with a zero byte, and the rest of the message.
fn name_and_rest(body: &[u8]) -> (&[u8], &[u8]) {
    let end = body.iter().position(|byte| *byte == 0).unwrap();
    (&body[..end], &body[end + 1..])
}

fn last_four(message: &[u8]) -> [u8; 4] {
    [message[4], message[5], message[6], message[7]]
}
