//! A slow network: a proxy that forwards every byte after a fixed delay.
//!
//! Both directions of a connection are read immediately and written after the delay, so the proxy adds to the round
//! trip but does not limit the throughput. It runs in its own thread, so that other tasks cannot delay it further.

use anyhow::Context;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

const CHUNK_BYTES: usize = 64 * 1_024;
/// The capacity of one direction: 32 MiB, far more than any link here carries within its delay.
const CHUNKS_UNDER_WAY: usize = 512;
/// Tokio's timer has a resolution of one millisecond and rounds up, by half a millisecond on average.
const TIMER_ROUNDS_UP: Duration = Duration::from_micros(500);

/// Bytes and the time at which to write them.
type Chunk = (Instant, Vec<u8>);

/// Forwards connections until it is dropped.
pub struct Proxy {
    pub address: SocketAddr,
    runtime: Option<Runtime>,
}

impl Proxy {
    /// Forwards connections from `listen` (port 0: any free port) to `to`, with a delay of `one_way` in each direction.
    pub fn start(listen: &str, to: &str, one_way: Duration) -> anyhow::Result<Self> {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let listener =
            std::net::TcpListener::bind(listen).with_context(|| format!("cannot listen on {listen}"))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let to = to.to_owned();
        runtime.spawn(async move {
            let Ok(listener) = TcpListener::from_std(listener) else { return };
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(forward(client, to.clone(), one_way));
            }
        });
        Ok(Self { address, runtime: Some(runtime) })
    }
}

impl Drop for Proxy {
    /// Ends all connections. It does not wait, because it may be called on a runtime.
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

async fn forward(client: TcpStream, to: String, one_way: Duration) {
    // A TCP handshake takes a round trip before the first packet.
    sleep_until(Instant::now() + one_way * 2).await;
    let Ok(server) = TcpStream::connect(&to).await else { return };
    if client.set_nodelay(true).is_err() || server.set_nodelay(true).is_err() {
        return;
    }
    let (client_reads, client_writes) = client.into_split();
    let (server_reads, server_writes) = server.into_split();
    tokio::join!(pass(client_reads, server_writes, one_way), pass(server_reads, client_writes, one_way));
}

/// Forwards one direction until the reader ends. It then closes only the writer's half, so the other direction
/// continues.
async fn pass(from: OwnedReadHalf, to: OwnedWriteHalf, one_way: Duration) {
    let (stamped, due) = mpsc::channel(CHUNKS_UNDER_WAY);
    tokio::join!(read(from, stamped, one_way.saturating_sub(TIMER_ROUNDS_UP)), write(due, to));
}

async fn read(mut from: OwnedReadHalf, stamped: mpsc::Sender<Chunk>, one_way: Duration) {
    let mut buffer = vec![0; CHUNK_BYTES];
    while let Ok(bytes @ 1..) = from.read(&mut buffer).await {
        let chunk = (Instant::now() + one_way, buffer[..bytes].to_vec());
        if stamped.send(chunk).await.is_err() {
            return;
        }
    }
}

async fn write(mut due: mpsc::Receiver<Chunk>, mut to: OwnedWriteHalf) {
    while let Some((at, bytes)) = due.recv().await {
        sleep_until(at).await;
        if to.write_all(&bytes).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that sends back everything it receives.
    async fn echo() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let (mut reads, mut writes) = stream.split();
                    _ = tokio::io::copy(&mut reads, &mut writes).await;
                });
            }
        });
        address
    }

    #[tokio::test]
    async fn every_round_trip_takes_twice_the_delay() {
        let echo = echo().await.to_string();
        let proxy = Proxy::start("127.0.0.1:0", &echo, Duration::from_millis(20)).unwrap();
        let mut stream = TcpStream::connect(proxy.address).await.unwrap();
        for _ in 0..3 {
            let sent = Instant::now();
            stream.write_all(b"ping").await.unwrap();
            let mut answer = [0; 4];
            stream.read_exact(&mut answer).await.unwrap();
            assert_eq!(&answer, b"ping");
            assert!(sent.elapsed() >= Duration::from_millis(39), "{:?}", sent.elapsed());
        }
    }

    #[tokio::test]
    async fn consecutive_chunks_are_delayed_in_parallel() {
        let echo = echo().await.to_string();
        let proxy = Proxy::start("127.0.0.1:0", &echo, Duration::from_millis(50)).unwrap();
        let (mut reads, mut writes) = TcpStream::connect(proxy.address).await.unwrap().into_split();
        let bytes: Vec<u8> = (0..100 * CHUNK_BYTES).map(|at| u8::try_from(at % 251).unwrap()).collect();
        let sent = Instant::now();
        let expected = bytes.clone();
        tokio::spawn(async move { writes.write_all(&bytes).await });
        let mut answer = vec![0; expected.len()];
        reads.read_exact(&mut answer).await.unwrap();
        assert!(answer == expected, "the echoed bytes differ from the sent bytes");
        // One after the other, 100 chunks would take 10 s.
        assert!(sent.elapsed() < Duration::from_secs(3), "{:?}", sent.elapsed());
    }
}
