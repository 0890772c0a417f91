//! The CPU time and memory of the measured processes on this machine, and how those of PostgreSQL and Kafka are found.

use crate::proc;
use crate::server::Server;
use serde::Serialize;
use std::net::{SocketAddr, ToSocketAddrs, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often memory is sampled. Each sample reads one file per process.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(250);

/// Processes whose CPU and memory are measured together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Party {
    pub name: String,
    /// The process ids. A process that does not exist counts as 0.
    pub processes: Vec<u32>,
    /// Whether their children count as well, including those that have ended.
    pub with_children: bool,
    /// Whether the peak memory covers the whole life of the processes. The kernel records this peak, so that no short
    /// one is missed.
    pub whole_life: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Usage {
    pub party: String,
    /// CPU time in seconds, user and system, with the kernel's resolution of 10 ms per process.
    pub cpu_seconds: f64,
    /// CPU time per row in microseconds, if there were rows.
    pub cpu_us_per_row: Option<f64>,
    /// CPU time divided by elapsed time. 1 is one full core.
    pub cores: f64,
    /// The peak resident memory in bytes. Memory that its processes share counts once.
    pub memory_peak_bytes: u64,
}

impl Party {
    pub fn process(name: &str, process: u32) -> Party {
        Party { name: name.to_owned(), processes: vec![process], with_children: false, whole_life: false }
    }

    pub fn this_process(name: &str) -> Party {
        Party::process(name, std::process::id())
    }

    /// A process that was started for the measurement.
    pub fn started(name: &str, process: u32) -> Party {
        Party { whole_life: true, ..Party::process(name, process) }
    }

    /// A process with all of its children, such as a server that forks for each connection.
    pub fn family(name: &str, parent: u32) -> Party {
        Party { with_children: true, ..Party::process(name, parent) }
    }

    /// The current resident memory of its processes in bytes, without their children. Memory that they share counts for
    /// each.
    pub fn memory(&self) -> u64 {
        let memories = self.processes.iter().filter_map(|process| proc::memory(*process));
        memories.map(|memory| memory.own + memory.shared).sum()
    }

    fn members(&self, children: &[(u32, u32)]) -> Vec<u32> {
        let mut members = self.processes.clone();
        if self.with_children {
            let of_us = children.iter().filter(|(_, parent)| self.processes.contains(parent));
            members.extend(of_us.map(|(process, _)| *process));
        }
        members
    }
}

#[derive(Clone, Debug)]
pub struct Reading {
    pub at: Instant,
    cpu: Vec<Duration>,
    machine: Option<proc::Machine>,
}

/// Measures parties from its creation until it is dropped.
pub struct Meter {
    parties: Vec<Party>,
    peaks: Arc<Mutex<Vec<u64>>>,
    ending: Arc<AtomicBool>,
    sampler: Option<JoinHandle<()>>,
}

impl Meter {
    pub fn start(parties: Vec<Party>) -> Meter {
        let peaks = Arc::new(Mutex::new(vec![0; parties.len()]));
        let ending = Arc::new(AtomicBool::new(false));
        let sampler = {
            let (parties, peaks, ending) = (parties.clone(), Arc::clone(&peaks), Arc::clone(&ending));
            std::thread::spawn(move || {
                while !ending.load(Ordering::Acquire) {
                    sample(&parties, &peaks);
                    std::thread::park_timeout(SAMPLE_INTERVAL);
                }
            })
        };
        Meter { parties, peaks, ending, sampler: Some(sampler) }
    }

    pub fn read(&self) -> Reading {
        let children =
            if self.parties.iter().any(|party| party.with_children) { proc::children() } else { Vec::new() };
        let cpu = self.parties.iter().map(|party| {
            let times = party.members(&children).into_iter().filter_map(proc::times);
            times.map(|times| if party.with_children { times.own + times.ended } else { times.own }).sum()
        });
        Reading { cpu: cpu.collect(), machine: proc::machine(), at: Instant::now() }
    }

    /// The share of all cores of the machine that any process used between two readings, from 0 to 1.
    pub fn busy(&self, from: &Reading, to: &Reading) -> Option<f64> {
        let (from, to) = (from.machine?, to.machine?);
        let all = to.all.saturating_sub(from.all).as_secs_f64();
        (all > 0.0).then(|| 1.0 - to.idle.saturating_sub(from.idle).as_secs_f64() / all)
    }

    /// What was used between two readings, during which this number of rows was moved.
    pub fn used(&self, from: &Reading, to: &Reading, rows: u64) -> Vec<Usage> {
        sample(&self.parties, &self.peaks);
        let peaks = self.peaks.lock().unwrap_or_else(PoisonError::into_inner);
        let elapsed = to.at.saturating_duration_since(from.at).as_secs_f64();
        let each = self.parties.iter().zip(&*peaks).zip(from.cpu.iter().zip(&to.cpu));
        each.map(|((party, peak), (before, after))| {
            let seconds = after.saturating_sub(*before).as_secs_f64();
            Usage {
                party: party.name.clone(),
                cpu_seconds: seconds,
                cpu_us_per_row: (rows > 0).then(|| seconds * 1e6 / rows as f64),
                cores: if elapsed > 0.0 { seconds / elapsed } else { 0.0 },
                memory_peak_bytes: *peak,
            }
        })
        .collect()
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.ending.store(true, Ordering::Release);
        if let Some(sampler) = self.sampler.take() {
            sampler.thread().unpark();
            // A panic of that thread has already been reported.
            _ = sampler.join();
        }
    }
}

/// Raises the peaks to the current values.
fn sample(parties: &[Party], peaks: &Mutex<Vec<u64>>) {
    let children =
        if parties.iter().any(|party| party.with_children) { proc::children() } else { Vec::new() };
    for (at, party) in parties.iter().enumerate() {
        let members = party.members(&children).into_iter();
        let now = if party.whole_life {
            members.filter_map(proc::memory_peak).sum()
        } else {
            let memories: Vec<_> = members.filter_map(proc::memory).collect();
            let own: u64 = memories.iter().map(|memory| memory.own).sum();
            own + memories.iter().map(|memory| memory.shared).max().unwrap_or(0)
        };
        let mut peaks = peaks.lock().unwrap_or_else(PoisonError::into_inner);
        peaks[at] = peaks[at].max(now);
    }
}

/// Programs that only forward connections. What they use does not show what the broker uses.
const FORWARDERS: [&str; 6] = ["docker-proxy", "rootlessport", "slirp4netns", "conmon", "ssh", "kubectl"];

/// The processes of the servers, or why they are not visible.
#[derive(Clone, Debug)]
pub struct Parties {
    /// The postmaster and all of its children.
    pub postgres: Result<Party, String>,
    /// The brokers named in `bootstrap_servers`.
    pub kafka: Result<Party, String>,
}

impl Parties {
    pub fn find(server: &Server, bootstrap_servers: &str) -> Parties {
        Parties { postgres: postgres(server), kafka: kafka(bootstrap_servers) }
    }

    pub fn visible(&self) -> Vec<Party> {
        [&self.postgres, &self.kafka].into_iter().flatten().cloned().collect()
    }
}

/// The server returns the process id of our connection in its own namespace. The title of the process, which contains
/// our end of the connection, shows whether it is the same process here.
fn postgres(server: &Server) -> Result<Party, String> {
    let title = proc::command_line(server.backend).join(" ");
    let names_us = match server.client_port {
        Some(port) => title.contains(&format!("({port})")),
        None => title.contains("[local]"),
    };
    if !title.starts_with("postgres") || !names_us {
        return Err("not on this machine, or not visible".to_owned());
    }
    match proc::parent(server.backend) {
        Some(postmaster) if postmaster > 1 => Ok(Party::family("postgres", postmaster)),
        _ => Err("its postmaster is not visible".to_owned()),
    }
}

fn kafka(bootstrap_servers: &str) -> Result<Party, String> {
    let mut processes = Vec::new();
    for broker in bootstrap_servers.split(',').map(str::trim).filter(|broker| !broker.is_empty()) {
        let process = broker_process(broker)?;
        if !processes.contains(&process) {
            processes.push(process);
        }
    }
    Ok(Party { name: "kafka".to_owned(), processes, with_children: false, whole_life: false })
}

fn broker_process(broker: &str) -> Result<u32, String> {
    // A scheme, as in PLAINTEXT://host:port, is allowed.
    let address = broker.rsplit("://").next().unwrap_or(broker);
    let resolved = address.to_socket_addrs().into_iter().flatten();
    let local: Vec<SocketAddr> = resolved.filter(is_local).collect();
    if local.is_empty() {
        return Err(format!("{address} is not on this machine"));
    }
    let Some(listener) = local.into_iter().find_map(proc::listener) else {
        return Err(format!("no visible process listens on {address}"));
    };
    let process = proc::owner(listener.inode).or_else(|| only_broker_of(listener.user));
    let Some(process) = process else {
        return Err(format!("the process that listens on {address} belongs to another user"));
    };
    match proc::name(process) {
        Some(name) if FORWARDERS.iter().any(|forwarder| name.starts_with(forwarder)) => {
            Err(format!("{address} is forwarded by {name}"))
        }
        _ => Ok(process),
    }
}

/// The open files of another user's process are not visible, but its command line is. If that user runs only one
/// broker, it is this one.
fn only_broker_of(user: u32) -> Option<u32> {
    let is_broker =
        |process: &u32| proc::command_line(*process).iter().any(|word| word.starts_with("kafka.Kafka"));
    let mut brokers =
        proc::processes().filter(|process| proc::user(*process) == Some(user)).filter(is_broker);
    brokers.next().filter(|_| brokers.next().is_none())
}

/// Only an address of this machine can be bound.
fn is_local(address: &SocketAddr) -> bool {
    UdpSocket::bind((address.ip(), 0)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::BufRead;
    use std::process::{Command, Stdio};

    /// The CPU seconds of two parties between two readings.
    fn seconds(meter: &Meter, from: &Reading, to: &Reading) -> (f64, f64) {
        let used = meter.used(from, to, 0);
        (used[0].cpu_seconds, used[1].cpu_seconds)
    }

    #[test]
    fn child_processes_count_for_their_family_before_and_after_their_end() {
        let this = std::process::id();
        let meter = Meter::start(vec![Party::family("family", this), Party::process("alone", this)]);
        let begun = meter.read();
        let burn = "echo; n=0; while [ $n -lt 200000 ]; do n=$((n+1)); done; echo; read line";
        let mut command = Command::new("sh");
        let piped = command.args(["-c", burn]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = piped.spawn().unwrap();
        let mut said = std::io::BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(said.next().is_some() && said.next().is_some(), "the child has done its work");
        let (family, alone) = seconds(&meter, &begun, &meter.read());
        assert!(family > alone, "while the child runs: {family} s, {alone} s without it");
        drop(child.stdin.take());
        child.wait().unwrap();
        let (ended, alone) = seconds(&meter, &begun, &meter.read());
        assert!(
            ended - alone > 0.0 && ended >= family,
            "after the child has ended: {ended} s, {family} s before"
        );
    }
}
