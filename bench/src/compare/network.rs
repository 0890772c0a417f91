//! Scenario 14: a slow network. The relay reaches PostgreSQL and Kafka through proxies that forward every byte after a fixed
//! delay, and nothing else does.
//!
//! Both directions of a connection are read immediately and written after the delay, so a proxy adds to the round trip
//! but does not limit the throughput. It runs in its own thread, so that other tasks cannot delay it further.

use super::run::{Run, reference};
use crate::settings::Settings;
use anyhow::Context;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until};

/// One way.
const TO_POSTGRES: Duration = Duration::from_micros(2_500);
const TO_KAFKA: Duration = Duration::from_millis(5);

/// Settings to try for a slow network: the number of workers and the batch size. The best is documented.
const TUNINGS: [(u32, u32); 5] = [(6, 5_000), (8, 5_000), (12, 5_000), (8, 10_000), (16, 10_000)];

pub async fn measure(run: &mut Run<'_>) -> anyhow::Result<()> {
    drain_from(run, 1, "default", |settings| settings).await?;
    let mut best = (0.0, TUNINGS[0]);
    for (workers, batch_rows) in TUNINGS {
        let name = format!("{workers} workers, batches of {batch_rows}");
        let rate = drain_from(run, 1, &name, tuned(workers, batch_rows)).await?;
        if rate > best.0 {
            best = (rate, (workers, batch_rows));
        }
    }
    let (workers, batch_rows) = best.1;
    for _ in 0..run.size.runs {
        drain_from(run, 1, "tuned", tuned(workers, batch_rows)).await?;
        drain_from(run, 2, "tuned, twice as far", tuned(workers, batch_rows)).await?;
    }
    run.outcome.notes.push(format!(
        "Documented settings: `[relay] workers = {workers}`, `batch_size = {batch_rows}`. Round trips are 5 ms to \
         PostgreSQL and 10 ms to Kafka. *Twice as far* means 10 ms and 20 ms. The proxy uses the same cores."
    ));
    Ok(())
}

fn tuned(workers: u32, batch_rows: u32) -> impl Fn(Settings) -> Settings {
    move |settings| {
        let settings = settings.with("relay", "workers", workers.to_string());
        settings.with("relay", "batch_size", batch_rows.to_string())
    }
}

/// Drains with `far` times the delay. Returns the rate.
async fn drain_from(
    run: &mut Run<'_>,
    far: u32,
    name: &str,
    change: impl Fn(Settings) -> Settings,
) -> anyhow::Result<f64> {
    let shape = reference(run.size.rows(500_000));
    let route = run.route(&shape).await?;
    run.place.fill(&shape).await?;
    let world = run.world;
    let (url, address) = (&world.postgres, host_and_port(&world.postgres)?);
    let postgres = Proxy::start("127.0.0.1:0", address, TO_POSTGRES * far)?;
    let kafka = Proxy::start(&world.kafka_proxy, &world.kafka_behind, TO_KAFKA * far)?;
    let url = url.replace(address, &postgres.address.to_string());
    let drain = Run::relay_drains_to(route, |settings| {
        let settings = change(settings).with("postgres", "url", url);
        settings.with("kafka", "bootstrap_servers", kafka.address.to_string())
    });
    let drain = drain.await?;
    run.show_rate(name, &drain);
    Ok(drain.rows_per_second)
}

/// The host and port of a URL such as `postgres://user@host:port/database`.
fn host_and_port(url: &str) -> anyhow::Result<&str> {
    let rest = url.split('@').nth(1).and_then(|rest| rest.split('/').next());
    rest.with_context(|| "the database's URL does not have the form that scripts/services uses".to_owned())
}

const CHUNK_BYTES: usize = 64 * 1_024;
/// The capacity of one direction: 32 MiB, far more than any link here carries within its delay.
const CHUNKS_UNDER_WAY: usize = 512;
/// Tokio's timer has a resolution of one millisecond and rounds up, by half a millisecond on average.
const TIMER_ROUNDS_UP: Duration = Duration::from_micros(500);

/// Bytes and the time at which to write them.
type Chunk = (Instant, Vec<u8>);

/// Forwards connections until it is dropped, which does not wait for their end.
struct Proxy {
    address: SocketAddr,
    /// Dropping it ends the thread.
    _running: oneshot::Sender<()>,
}

impl Proxy {
    /// Forwards connections from `listen` (port 0: any free port) to `to`, with a delay of `one_way` in each direction.
    fn start(listen: &str, to: &str, one_way: Duration) -> anyhow::Result<Self> {
        let listener =
            std::net::TcpListener::bind(listen).with_context(|| format!("cannot listen on {listen}"))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (running, dropped) = oneshot::channel::<()>();
        let to = to.to_owned();
        let accept = async move {
            let Ok(listener) = TcpListener::from_std(listener) else { return };
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(forward(client, to.clone(), one_way));
            }
        };
        std::thread::spawn(move || {
            runtime.block_on(async {
                tokio::select! { () = accept => {}, _ = dropped => {} }
            });
        });
        Ok(Self { address, _running: running })
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

    #[test]
    fn the_host_and_port_are_taken_from_the_url() {
        assert_eq!(host_and_port("postgres://postgres@127.0.0.1:25432/postgres").unwrap(), "127.0.0.1:25432");
        assert!(host_and_port("postgres").is_err());
    }

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
