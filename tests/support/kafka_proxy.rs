//! A proxy for Kafka that a test can close, stall, delay and make lose data, and that can act on single Produce
//! requests.
//!
//! Clients bootstrap through the proxy and stay connected to it, because it replaces the broker's address in each
//! answer.

use std::collections::HashSet;
use std::io::Result;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};

use super::kafka_wire::{Produce, correlation_of_answer};
use super::topics;

/// How long a refusal waits for a second request in flight.
const SECOND_WITHIN: Duration = Duration::from_millis(300);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// New connections are refused.
    Closed,
    Open,
    /// Connections stay open, but nothing passes.
    Stalled,
    /// Connections stay open, but sent data is lost: requests, answers, or both.
    Loses {
        requests: bool,
        answers: bool,
    },
}

/// What happens to a Produce request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Pass,
    /// The request, and all requests after it on its connection, wait for [`Proxy::release`], even if the client
    /// disconnects.
    Hold,
    /// The broker never receives the request. The client gets this code, after it has sent a second request if that
    /// happens soon.
    Refuse(i16),
    /// The broker receives the request. Its answer is lost, and the connection is closed.
    LoseAnswer,
}

/// An address in answers, and what replaces it. Both have the same length.
type Rewrite = (Vec<u8>, Vec<u8>);

type Rule = Box<dyn FnMut(&Produce) -> Action + Send>;

/// The state that all connections share.
#[derive(Clone)]
struct Shared {
    here: SocketAddr,
    broker: Arc<Mutex<SocketAddr>>,
    state: watch::Receiver<State>,
    released: watch::Receiver<bool>,
    delay: watch::Receiver<Duration>,
    rule: Arc<Mutex<Option<Rule>>>,
    /// Connections with a lower number are silent: they stay open, but lose everything.
    silent_below: watch::Receiver<u64>,
    /// The addresses of other brokers in answers, and the proxies in front of them.
    others: Arc<Mutex<Vec<Rewrite>>>,
}

impl Shared {
    fn broker(&self) -> SocketAddr {
        *self.broker.lock().unwrap()
    }

    fn is_silent(&self, client: &Client) -> bool {
        client.number < *self.silent_below.borrow()
    }
}

/// Forwards one loopback port to a broker.
pub struct Proxy {
    shared: Shared,
    state: watch::Sender<State>,
    release: watch::Sender<bool>,
    delay: watch::Sender<Duration>,
    silence: watch::Sender<u64>,
    /// How many connections there were.
    accepted: Arc<AtomicU64>,
    /// The state that the task has applied.
    reached: watch::Receiver<State>,
    task: JoinHandle<()>,
}

impl Proxy {
    /// A closed proxy for the shared broker. Must be called on a runtime.
    pub fn closed() -> Self {
        Self::before(&topics::bootstrap())
    }

    /// An open proxy for the shared broker.
    pub async fn open() -> Self {
        let mut proxy = Self::closed();
        proxy.resume().await;
        proxy
    }

    /// A closed proxy for the broker at this address. Must be called on a runtime.
    pub fn before(broker: &str) -> Self {
        let placeholder = bind("127.0.0.1:0".parse().unwrap());
        let here = placeholder.local_addr().unwrap();
        let (state, wanted) = watch::channel(State::Closed);
        let (reach, reached) = watch::channel(State::Closed);
        let (release, released) = watch::channel(false);
        let (delay, delayed) = watch::channel(Duration::ZERO);
        let (silence, silent_below) = watch::channel(0);
        let accepted = Arc::new(AtomicU64::new(0));
        let rule = Arc::new(Mutex::new(None));
        let broker = Arc::new(Mutex::new(broker.parse().unwrap()));
        let shared = Shared {
            here,
            broker,
            state: wanted,
            released,
            delay: delayed,
            rule,
            silent_below,
            others: Arc::default(),
        };
        let task = tokio::spawn(serve(placeholder, shared.clone(), reach, Arc::clone(&accepted)));
        Self { shared, state, release, delay, silence, accepted, reached, task }
    }

    /// Makes clients reach the broker of another proxy through that proxy.
    pub fn names(&self, other: &Proxy) {
        self.shared.others.lock().unwrap().push((place(other.shared.broker()), place(other.shared.here)));
    }

    /// Makes the broker advertise this host, whose name is as long as the broker's, and this port.
    pub fn advertise(&self, host: &str, port: u16) {
        let (real, advertised) = (place(self.shared.broker()), encoded(host, port));
        assert_eq!(real.len(), advertised.len());
        self.shared.others.lock().unwrap().push((real, advertised));
    }

    /// Makes the broker advertise the proxy again.
    pub fn advertise_proxy(&self) {
        self.shared.others.lock().unwrap().clear();
    }

    /// The address for `bootstrap_servers`.
    pub fn address(&self) -> String {
        self.shared.here.to_string()
    }

    /// Opens the proxy and passes all data.
    pub async fn resume(&mut self) {
        self.set_state(State::Open).await;
    }

    /// Closes every connection and refuses new ones.
    pub async fn close(&mut self) {
        self.set_state(State::Closed).await;
    }

    /// Closes every connection, and leads new ones to the broker at this address.
    pub async fn move_to(&mut self, broker: &str) {
        self.close().await;
        *self.shared.broker.lock().unwrap() = broker.parse().unwrap();
        self.resume().await;
    }

    /// Stalls both directions without closing connections. Stalled data passes later.
    pub async fn stall(&mut self) {
        self.set_state(State::Stalled).await;
    }

    /// Loses requests, answers, or both, without closing connections. A connection that lost data never passes data in
    /// that direction again.
    pub async fn lose(&mut self, requests: bool, answers: bool) {
        self.set_state(State::Loses { requests, answers }).await;
    }

    /// Makes every existing connection lose all data in both directions without closing. New connections work.
    pub fn silence_connections(&self) {
        self.silence.send_replace(self.accepted.load(Ordering::SeqCst));
    }

    /// Applies this rule to every Produce request from now on.
    pub fn act(&self, rule: impl FnMut(&Produce) -> Action + Send + 'static) {
        *self.shared.rule.lock().unwrap() = Some(Box::new(rule));
    }

    /// Releases held requests, and holds no more.
    pub fn release(&self) {
        self.release.send_replace(true);
    }

    /// Delays each request by this time from now on.
    pub fn delay(&self, delay: Duration) {
        self.delay.send_replace(delay);
    }

    async fn set_state(&mut self, state: State) {
        self.state.send_replace(state);
        self.reached.wait_for(|reached| *reached == state).await.unwrap();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Reserves the port without listening. Clients are refused, and no other process gets the port, but another socket of this
/// process can listen on it.
fn bind(address: SocketAddr) -> TcpSocket {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_reuseaddr(true).unwrap();
    socket.set_reuseport(true).unwrap();
    socket.bind(address).unwrap();
    socket
}

/// `_placeholder` reserves the port from the first to the last moment, whether the proxy is open or closed.
async fn serve(
    _placeholder: TcpSocket,
    mut shared: Shared,
    reach: watch::Sender<State>,
    accepted: Arc<AtomicU64>,
) {
    let mut listener: Option<TcpListener> = None;
    let mut connections = JoinSet::new();
    loop {
        let state = *shared.state.borrow_and_update();
        if state == State::Closed {
            connections.shutdown().await;
            listener = None;
        } else if listener.is_none() {
            listener = Some(bind(shared.here).listen(64).unwrap());
        }
        reach.send_replace(state);
        tokio::select! {
            changed = shared.state.changed() => if changed.is_err() { return },
            client = accept(&listener) => {
                let number = accepted.fetch_add(1, Ordering::SeqCst);
                connections.spawn(forward(client, shared.clone(), number));
            }
        }
    }
}

async fn accept(listener: &Option<TcpListener>) -> TcpStream {
    match listener {
        Some(listener) => listener.accept().await.unwrap().0,
        None => std::future::pending().await,
    }
}

/// The direction to a client.
struct Client {
    /// Counts the connections of the proxy.
    number: u64,
    stream: tokio::sync::Mutex<OwnedWriteHalf>,
    /// The correlation ids of answers whose connection is closed instead.
    lost: Mutex<HashSet<i32>>,
}

async fn forward(client: TcpStream, shared: Shared, number: u64) {
    let Ok(server) = TcpStream::connect(shared.broker()).await else { return };
    let (client_reads, client_writes) = client.into_split();
    let (server_reads, server_writes) = server.into_split();
    let client = Client { number, stream: client_writes.into(), lost: Mutex::default() };
    tokio::select! {
        () = pass_requests(client_reads, server_writes, &client, shared.clone()) => {}
        _ = pass_answers(server_reads, &client, shared) => {}
    }
}

/// Passes one request after the other. If the client disconnects, the broker still gets what was sent before. When the
/// broker closes its connection, the other direction ends too.
async fn pass_requests(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, client: &Client, mut shared: Shared) {
    _ = pass_each_request(&mut from, &mut to, client, &mut shared).await;
    _ = to.shutdown().await;
    std::future::pending::<()>().await;
}

async fn pass_each_request(
    from: &mut OwnedReadHalf,
    to: &mut OwnedWriteHalf,
    client: &Client,
    shared: &mut Shared,
) -> Result<()> {
    let mut refusal: Option<Vec<u8>> = None;
    loop {
        if refusal.is_some() && timeout(SECOND_WITHIN, from.readable()).await.is_err() {
            answer(client, refusal.take()).await?;
        }
        let message = read(from).await?;
        let produce = Produce::parse(&message[4..]);
        if produce.is_some() {
            // This is the second request.
            answer(client, refusal.take()).await?;
        }
        passable(&mut shared.state).await;
        if matches!(*shared.state.borrow(), State::Loses { requests: true, .. }) || shared.is_silent(client) {
            return swallow(from).await;
        }
        if let Some(produce) = produce {
            let rule = shared.rule.lock().unwrap().as_mut().map_or(Action::Pass, |rule| rule(&produce));
            match rule {
                Action::Pass => {}
                Action::Hold => _ = shared.released.wait_for(|released| *released).await,
                Action::LoseAnswer => _ = client.lost.lock().unwrap().insert(produce.correlation),
                Action::Refuse(code) => {
                    refusal = Some(produce.refusal(code));
                    continue;
                }
            }
        }
        let delay = *shared.delay.borrow();
        if !delay.is_zero() {
            sleep(delay).await;
        }
        to.write_all(&message).await?;
    }
}

/// Passes one answer after the other, even if the client has disconnected.
async fn pass_answers(mut from: OwnedReadHalf, client: &Client, mut shared: Shared) -> Result<()> {
    loop {
        let mut message = read(&mut from).await?;
        let others = shared.others.lock().unwrap().clone();
        for (broker, here) in others.into_iter().chain([(place(shared.broker()), place(shared.here))]) {
            while let Some(found) = message.windows(broker.len()).position(|bytes| bytes == broker) {
                message[found..found + here.len()].copy_from_slice(&here);
            }
        }
        passable(&mut shared.state).await;
        if matches!(*shared.state.borrow(), State::Loses { answers: true, .. }) || shared.is_silent(client) {
            return swallow(&mut from).await;
        }
        if client.lost.lock().unwrap().contains(&correlation_of_answer(&message[4..])) {
            return Ok(());
        }
        _ = answer(client, Some(message)).await;
    }
}

async fn answer(client: &Client, message: Option<Vec<u8>>) -> Result<()> {
    match message {
        Some(message) => client.stream.lock().await.write_all(&message).await,
        None => Ok(()),
    }
}

/// Waits while the proxy is stalled.
async fn passable(state: &mut watch::Receiver<State>) {
    // An error means that the test has ended.
    _ = state.wait_for(|state| *state != State::Stalled).await;
}

async fn swallow(from: &mut OwnedReadHalf) -> Result<()> {
    loop {
        read(from).await?;
    }
}

/// Reads a message including its length.
async fn read(from: &mut OwnedReadHalf) -> Result<Vec<u8>> {
    let length = from.read_u32().await?;
    let mut message = length.to_be_bytes().to_vec();
    message.resize(4 + length as usize, 0);
    from.read_exact(&mut message[4..]).await?;
    Ok(message)
}

/// The encoding of a broker's address in an answer: its host, then its port in four bytes.
fn place(address: SocketAddr) -> Vec<u8> {
    encoded(&address.ip().to_string(), address.port())
}

fn encoded(host: &str, port: u16) -> Vec<u8> {
    [host.as_bytes(), &u32::from(port).to_be_bytes()].concat()
}
