//! Reads /proc: CPU times and memory of processes, their parents, and the process that listens on a port.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

/// The unit of times in /proc: a second divided by USER_HZ, which is 100 on every platform that the relay is built for.
const TICK_MS: u64 = 10;
const STATE_LISTEN: &str = "0A";

/// CPU time of a process, user and system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Times {
    pub(crate) own: Duration,
    pub(crate) ended: Duration,
}

/// Resident memory of a process in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Memory {
    /// Memory that no other process shares.
    pub(crate) own: u64,
    /// Memory that other processes of its family may share: its program, shared memory.
    pub(crate) shared: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Machine {
    pub(crate) all: Duration,
    /// The time in which a core had nothing to do. Waiting for a disk counts as idle.
    pub(crate) idle: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Listener {
    pub(crate) inode: u64,
    pub(crate) user: u32,
}

pub(crate) fn times(process: u32) -> Option<Times> {
    parse_stat(&fs::read_to_string(format!("/proc/{process}/stat")).ok()?).map(|(_, times)| times)
}

pub(crate) fn parent(process: u32) -> Option<u32> {
    parse_stat(&fs::read_to_string(format!("/proc/{process}/stat")).ok()?).map(|(parent, _)| parent)
}

pub(crate) fn machine() -> Option<Machine> {
    parse_machine(&fs::read_to_string("/proc/stat").ok()?)
}

pub(crate) fn children() -> Vec<(u32, u32)> {
    processes().filter_map(|process| Some((process, parent(process)?))).collect()
}

pub(crate) fn memory(process: u32) -> Option<Memory> {
    parse_status(&fs::read_to_string(format!("/proc/{process}/status")).ok()?)
}

/// The peak resident memory of a process, in bytes.
pub(crate) fn memory_peak(process: u32) -> Option<u64> {
    field(&fs::read_to_string(format!("/proc/{process}/status")).ok()?, "VmHWM:")
}

/// The arguments, starting with the program. For a server that sets its title, the title.
pub(crate) fn command_line(process: u32) -> Vec<String> {
    let bytes = fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
    let parts = bytes.split(|byte| *byte == 0).filter(|part| !part.is_empty());
    parts.map(|part| String::from_utf8_lossy(part).into_owned()).collect()
}

pub(crate) fn name(process: u32) -> Option<String> {
    Some(fs::read_to_string(format!("/proc/{process}/comm")).ok()?.trim_end().to_owned())
}

pub(crate) fn user(process: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("Uid:"))?.split_whitespace().nth(1)?.parse().ok()
}

pub(crate) fn processes() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

pub(crate) fn listener(address: SocketAddr) -> Option<Listener> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"];
    tables.into_iter().find_map(|table| parse_listener(&fs::read_to_string(table).ok()?, address))
}

/// The process that has this socket open. The files of other users' processes are not readable.
pub(crate) fn owner(inode: u64) -> Option<u32> {
    let sought = format!("socket:[{inode}]");
    processes().find(|process| {
        let files = fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
        files.filter_map(|file| fs::read_link(file.path()).ok()).any(|link| link.as_os_str() == &*sought)
    })
}

/// The parent and the times of a line of /proc/PID/stat. The name in it is in parentheses and may contain any
/// character.
fn parse_stat(line: &str) -> Option<(u32, Times)> {
    let (_, rest) = line.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let ticks = |at: usize| Some(duration(fields.get(at)?.parse().ok()?));
    let own = ticks(11)? + ticks(12)?;
    let ended = ticks(13)? + ticks(14)?;
    Some((fields.get(1)?.parse().ok()?, Times { own, ended }))
}

fn duration(ticks: u64) -> Duration {
    Duration::from_millis(TICK_MS * ticks)
}

/// The first line: user, nice, system, idle, iowait, irq, softirq, steal. The remaining values are parts of these.
fn parse_machine(stat: &str) -> Option<Machine> {
    let fields = stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace().take(8);
    let times: Vec<Duration> = fields.map(|field| field.parse().ok().map(duration)).collect::<Option<_>>()?;
    Some(Machine { all: times.iter().sum(), idle: *times.get(3)? + *times.get(4)? })
}

fn parse_status(status: &str) -> Option<Memory> {
    let shared = field(status, "RssFile:")? + field(status, "RssShmem:")?;
    Some(Memory { own: field(status, "RssAnon:")?, shared })
}

fn field(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim().trim_end_matches(" kB").parse::<u64>().ok()? * 1_024)
}

/// Finds a listener on this port, on the address itself or on all addresses.
fn parse_listener(table: &str, address: SocketAddr) -> Option<Listener> {
    table.lines().skip(1).find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        if *fields.get(3)? != STATE_LISTEN {
            return None;
        }
        let local = parse_address(fields[1])?;
        let fits = local.ip().is_unspecified() || local.ip().to_canonical() == address.ip().to_canonical();
        if local.port() != address.port() || !fits {
            return None;
        }
        Some(Listener { user: fields.get(7)?.parse().ok()?, inode: fields.get(9)?.parse().ok()? })
    })
}

/// `0100007F:1F90` is 127.0.0.1:8080: words of 32 bits in the machine's byte order.
fn parse_address(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.split_once(':')?;
    let words: Vec<[u8; 4]> = (0..address.len() / 8)
        .map(|word| u32::from_str_radix(&address[8 * word..8 * word + 8], 16).ok().map(u32::to_ne_bytes))
        .collect::<Option<_>>()?;
    let ip = match words.as_slice() {
        [v4] => IpAddr::V4(Ipv4Addr::from(*v4)),
        [a, b, c, d] => {
            let mut bytes = [0; 16];
            for (at, word) in [a, b, c, d].into_iter().enumerate() {
                bytes[4 * at..4 * at + 4].copy_from_slice(word);
            }
            IpAddr::V6(Ipv6Addr::from(bytes))
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_is_parsed_whatever_the_name_of_the_process() {
        let line = "4711 (a ) (b) S 1 4711 4711 0 -1 4194560 2 3 0 0 150 25 40 5 20 0 1 0 100 0 0";
        let (parent, times) = parse_stat(line).unwrap();
        assert_eq!(parent, 1);
        let ms = Duration::from_millis;
        assert_eq!(times, Times { own: ms(1_750), ended: ms(450) });
    }

    #[test]
    fn waiting_for_a_disk_counts_as_idle() {
        let stat = "cpu  100 20 30 400 50 6 7 8 90 0\ncpu0 1 2 3 4 5 6 7 8 9 0\n";
        let ms = Duration::from_millis;
        assert_eq!(parse_machine(stat), Some(Machine { all: ms(6_210), idle: ms(4_500) }));
    }

    #[test]
    fn listener_is_found_by_its_address_or_on_all_addresses() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000   999        0 12345 1 0 100 0 0 10 0
   1: 00000000:1F91 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 12346 1 0 100 0 0 10 0
   2: 0100007F:1F92 0100007F:1F90 01 00000000:00000000 00:00000000 00000000     0        0 12347 1 0 100 0 0 10 0";
        let inode =
            |address: &str| parse_listener(table, address.parse().unwrap()).map(|listener| listener.inode);
        if cfg!(target_endian = "little") {
            assert_eq!(inode("127.0.0.1:8080"), Some(12_345));
            assert_eq!(inode("10.0.0.1:8080"), None, "the listener is on another address");
            assert_eq!(inode("10.0.0.1:8081"), Some(12_346));
            assert_eq!(inode("127.0.0.1:8082"), None, "a connection is not a listener");
        }
        let listener = parse_listener(table, "127.0.0.1:8081".parse().unwrap()).unwrap();
        assert_eq!(listener.user, 0);
    }

    #[test]
    fn this_process_has_times_memory_and_a_parent() {
        let process = std::process::id();
        assert!(memory(process).unwrap().own > 0 && memory_peak(process).unwrap() > 0);
        let parent = parent(process).unwrap();
        assert!(children().contains(&(process, parent)));
        let begun = times(process).unwrap().own;
        let mut sum = 0_u64;
        while times(process).unwrap().own < begun + duration(3) {
            sum = std::hint::black_box(sum + 1);
        }
    }

    #[test]
    fn listener_of_this_process_is_found() {
        let listening = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let found = listener(listening.local_addr().unwrap()).unwrap();
        assert_eq!(owner(found.inode), Some(std::process::id()));
        assert_eq!(user(std::process::id()), Some(found.user));
    }
}
