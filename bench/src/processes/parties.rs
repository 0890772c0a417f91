//! Finds the processes of PostgreSQL and Kafka if they run on this machine and are visible.

use crate::postgres::about::Server;
use crate::processes::proc;
use crate::processes::usage::Party;
use std::net::{SocketAddr, ToSocketAddrs, UdpSocket};

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
    /// The visible ones.
    pub fn visible(&self) -> Vec<Party> {
        [&self.postgres, &self.kafka].into_iter().flatten().cloned().collect()
    }
}

/// Finds them.
pub fn find(server: &Server, bootstrap_servers: &str) -> Parties {
    Parties { postgres: postgres(server), kafka: kafka(bootstrap_servers) }
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
