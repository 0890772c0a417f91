//! A way to Kafka that a test can close, cut and hold up.
//!
//! Clients bootstrap through it, and stay with it: the broker's own address in each answer is replaced by its.

use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use super::topics;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nobody listens.
    Closed,
    Open,
    /// Connections stay, and nothing passes.
    HeldUp,
}

/// Forwards one loopback port to the broker.
pub struct Forwarder {
    address: SocketAddr,
    state: watch::Sender<State>,
    /// What the task has made of it.
    reached: watch::Receiver<State>,
    task: JoinHandle<()>,
}

impl Forwarder {
    /// Nobody listens yet. Must be called on a runtime.
    pub fn closed() -> Self {
        let placeholder = bind("127.0.0.1:0".parse().unwrap());
        let address = placeholder.local_addr().unwrap();
        let (state, wanted) = watch::channel(State::Closed);
        let (reach, reached) = watch::channel(State::Closed);
        let task = tokio::spawn(serve(address, placeholder, wanted, reach));
        Self { address, state, reached, task }
    }

    pub async fn open() -> Self {
        let mut forwarder = Self::closed();
        forwarder.let_through().await;
        forwarder
    }

    /// For `bootstrap_servers`.
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// Listens, and passes everything on.
    pub async fn let_through(&mut self) {
        self.become_state(State::Open).await;
    }

    /// Ends every connection, and refuses new ones.
    pub async fn close(&mut self) {
        self.become_state(State::Closed).await;
    }

    /// Passes nothing on, in either direction, and ends nothing.
    pub async fn hold_up(&mut self) {
        self.become_state(State::HeldUp).await;
    }

    async fn become_state(&mut self, state: State) {
        self.state.send_replace(state);
        self.reached.wait_for(|reached| *reached == state).await.unwrap();
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Holds the port without listening: who connects is refused, and nobody else gets it.
fn bind(address: SocketAddr) -> TcpSocket {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_reuseaddr(true).unwrap();
    socket.bind(address).unwrap();
    socket
}

async fn serve(
    address: SocketAddr,
    placeholder: TcpSocket,
    mut wanted: watch::Receiver<State>,
    reach: watch::Sender<State>,
) {
    let mut placeholder = Some(placeholder);
    let mut listener: Option<TcpListener> = None;
    let mut connections = JoinSet::new();
    loop {
        let state = *wanted.borrow_and_update();
        if state == State::Closed {
            connections.shutdown().await;
            if listener.take().is_some() {
                placeholder = Some(bind(address));
            }
        } else if let Some(placeholder) = placeholder.take() {
            listener = Some(placeholder.listen(64).unwrap());
        }
        reach.send_replace(state);
        tokio::select! {
            changed = wanted.changed() => if changed.is_err() { return },
            client = accept(&listener) => {
                connections.spawn(forward(client, address, wanted.clone()));
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

async fn forward(client: TcpStream, here: SocketAddr, state: watch::Receiver<State>) {
    let broker: SocketAddr = topics::bootstrap().parse().unwrap();
    let Ok(server) = TcpStream::connect(broker).await else { return };
    let (client_reads, client_writes) = client.into_split();
    let (server_reads, server_writes) = server.into_split();
    let replace = (place(broker), place(here));
    tokio::select! {
        _ = pass(client_reads, server_writes, state.clone(), None) => {}
        _ = pass(server_reads, client_writes, state, Some(replace)) => {}
    }
}

/// How a broker's address stands in an answer: its host, then its port in four bytes.
fn place(address: SocketAddr) -> Vec<u8> {
    [address.ip().to_string().as_bytes(), &u32::from(address.port()).to_be_bytes()].concat()
}

/// Passes on one request or answer after the other.
async fn pass(
    mut from: impl AsyncReadExt + Unpin,
    mut to: impl AsyncWriteExt + Unpin,
    mut state: watch::Receiver<State>,
    replace: Option<(Vec<u8>, Vec<u8>)>,
) -> std::io::Result<()> {
    loop {
        let mut message = from.read_u32().await?.to_be_bytes().to_vec();
        let length = u32::from_be_bytes([message[0], message[1], message[2], message[3]]) as usize;
        message.resize(4 + length, 0);
        from.read_exact(&mut message[4..]).await?;
        if let Some((broker, here)) = &replace {
            let at = |message: &[u8]| message.windows(broker.len()).position(|bytes| bytes == broker);
            while let Some(found) = at(&message) {
                message[found..found + here.len()].copy_from_slice(here);
            }
        }
        // An error means that the test is over.
        _ = state.wait_for(|state| *state != State::HeldUp).await;
        to.write_all(&message).await?;
    }
}
