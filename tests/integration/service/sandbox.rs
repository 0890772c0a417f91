//! The relay runs in the sandbox of its systemd unit, enforced by the kernel: only the system calls and address
//! families that the unit allows, no writable and executable memory, no new namespaces, no capabilities, and a
//! read-only file system. The tests use bubblewrap, because systemd is not available everywhere.
//!
//! ProtectKernelTunables and similar directives are not reproduced. They hide files that a relay never opens.

use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

use crate::support::outbox::Outbox;
use crate::support::rows::{self, Filling};
use crate::support::wait::{STALLED, wait_until};

const BINARY: &str = env!("CARGO_BIN_EXE_outbox-relay");
const UNIT: &str = include_str!("../../../systemd/outbox-relay.service");

const EPERM: u32 = 1;
const ENOSYS: u32 = 38;
const EAFNOSUPPORT: u32 = 97;
/// PROT_WRITE and PROT_EXEC, SHM_EXEC, and the flags of `clone` that create a namespace.
const WRITE_AND_EXECUTE: u64 = 2 | 4;
const EXECUTE: u64 = 4;
const SHARED_EXECUTE: u64 = 0o100_000;
const NEW_NAMESPACE: [u64; 7] =
    [0x2_0000, 0x200_0000, 0x400_0000, 0x800_0000, 0x1000_0000, 0x2000_0000, 0x4000_0000];

/// The values of a directive, one per line.
fn directive(name: &str) -> Vec<&'static str> {
    UNIT.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('=')).collect()
}

/// The system calls of one of systemd's sets.
fn system_calls(set: &str, into: &mut BTreeSet<String>) {
    let output = Command::new("systemd-analyze").args(["syscall-filter", set]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    for name in text.lines().skip(1).map(str::trim).filter(|name| !name.starts_with('#') && !name.is_empty())
    {
        if name.starts_with('@') { system_calls(name, into) } else { _ = into.insert(name.to_owned()) }
    }
}

/// The system calls that the unit's SystemCallFilter lines allow. The first line allows, the second one removes.
fn allowed() -> BTreeSet<String> {
    let mut allowed = BTreeSet::new();
    for line in directive("SystemCallFilter") {
        let mut named = BTreeSet::new();
        let sets = line.trim_start_matches('~');
        sets.split_whitespace().for_each(|set| system_calls(set, &mut named));
        if line.starts_with('~') {
            allowed.retain(|name| !named.contains(name));
        } else {
            allowed.append(&mut named);
        }
    }
    allowed
}

/// A seccomp filter. System calls that match the rules get `matched`, all others `otherwise`. None if this machine has
/// no such system call.
fn compile(rules: &[Value], matched: &Value, otherwise: &Value) -> Option<Vec<u8>> {
    let filter = json!({
        "it": { "match_action": matched, "mismatch_action": otherwise, "filter": rules }
    });
    let machine = std::env::consts::ARCH.try_into().unwrap();
    let compiled = seccompiler::compile_from_json(filter.to_string().as_bytes(), machine).ok()?;
    let instruction = |one: &seccompiler::sock_filter| {
        let [a, b] = one.code.to_ne_bytes();
        let [c, d, e, f] = one.k.to_ne_bytes();
        [a, b, one.jt, one.jf, c, d, e, f]
    };
    Some(compiled["it"].iter().flat_map(instruction).collect())
}

fn forbid(rules: &[Value], error: u32) -> Vec<u8> {
    compile(rules, &json!({ "errno": error }), &json!("allow")).unwrap()
}

fn when(syscall: &str, index: u8, op: &Value, value: u64) -> Value {
    json!({ "syscall": syscall, "args": [{ "index": index, "type": "dword", "op": op, "val": value }] })
}

fn masked(syscall: &str, index: u8, bits: u64) -> Value {
    when(syscall, index, &json!({ "masked_eq": bits }), bits)
}

/// The unit's filters, in the order in which they are installed. After the last one, no filter can be installed.
fn filters() -> Vec<Vec<u8>> {
    assert_eq!(directive("RestrictAddressFamilies"), ["AF_INET AF_INET6 AF_UNIX"]);
    let family = |number: u64| json!({ "index": 0, "type": "dword", "op": "ne", "val": number });
    let (unix, inet, inet6) = (1, 2, 10);
    let families = json!({ "syscall": "socket", "args": [family(unix), family(inet), family(inet6)] });
    assert_eq!(directive("MemoryDenyWriteExecute"), ["yes"]);
    let memory = [
        masked("mmap", 2, WRITE_AND_EXECUTE),
        masked("mprotect", 2, EXECUTE),
        masked("pkey_mprotect", 2, EXECUTE),
        masked("shmat", 2, SHARED_EXECUTE),
    ];
    assert_eq!(directive("RestrictNamespaces"), ["yes"]);
    let mut namespaces: Vec<_> = NEW_NAMESPACE.iter().map(|flag| masked("clone", 0, *flag)).collect();
    namespaces.extend([json!({ "syscall": "unshare" }), json!({ "syscall": "setns" })]);
    // As systemd does: the C library then uses `clone`, whose flags a filter can check.
    let clone3 = [json!({ "syscall": "clone3" })];
    assert_eq!(directive("SystemCallErrorNumber"), ["EPERM"]);
    let (yes, no) = (json!("allow"), json!({ "errno": EPERM }));
    let known = |name: &String| {
        Some(json!({ "syscall": name }))
            .filter(|rule| compile(std::slice::from_ref(rule), &yes, &no).is_some())
    };
    let allowed: Vec<Value> = allowed().iter().filter_map(known).collect();
    assert!(allowed.len() > 200, "{}", allowed.len());
    vec![
        forbid(&[families], EAFNOSUPPORT),
        forbid(&memory, EPERM),
        forbid(&namespaces, EPERM),
        forbid(&clone3, ENOSYS),
        compile(&allowed, &yes, &no).unwrap(),
    ]
}

/// A folder with the filters. A configuration can be put there and is visible in the sandbox.
struct Sandbox {
    folder: TempDir,
    filters: usize,
}

impl Sandbox {
    /// Returns None and prints a line if the machine does not support it.
    fn new() -> Option<Sandbox> {
        for needed in ["bwrap", "systemd-analyze"] {
            match Command::new(needed).arg("--version").output() {
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    eprintln!("SKIPPED: {needed} is not installed");
                    return None;
                }
                Err(error) => panic!("{needed}: {error}"),
                Ok(_) => {}
            }
        }
        // Ubuntu 24.04 forbids user namespaces to ordinary users. Without the filters, whose faults must not be hidden.
        let bare = [
            "--unshare-user",
            "--unshare-pid",
            "--uid",
            "64000",
            "--ro-bind",
            "/",
            "/",
            "--proc",
            "/proc",
            "true",
        ];
        let probed = Command::new("bwrap").args(bare).output().unwrap();
        if !probed.status.success() {
            eprintln!("SKIPPED: {}", String::from_utf8_lossy(&probed.stderr).trim());
            return None;
        }
        for (directive_name, value) in [
            ("NoNewPrivileges", "yes"),
            ("CapabilityBoundingSet", ""),
            ("ProtectSystem", "strict"),
            ("PrivateUsers", "yes"),
        ] {
            assert_eq!(directive(directive_name), [value], "{directive_name}");
        }
        let folder = tempfile::tempdir().unwrap();
        let filters = filters();
        for (number, filter) in filters.iter().enumerate() {
            fs::write(folder.path().join(format!("filter-{number}")), filter).unwrap();
        }
        Some(Sandbox { folder, filters: filters.len() })
    }

    /// The program in the sandbox.
    fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let folder = self.folder.path().to_str().unwrap();
        // bubblewrap reads filters from open files, starting at descriptor 10. The shell opens them.
        let numbers = 0..self.filters;
        let opened: String = numbers.clone().map(|n| format!(" {}<'{folder}/filter-{n}'", n + 10)).collect();
        let entered: String = numbers.map(|n| format!(" --add-seccomp-fd {}", n + 10)).collect();
        let sandbox = format!(
            "exec bwrap --unshare-user --unshare-pid --unshare-ipc --unshare-uts --uid 64000 --gid 64000 --cap-drop ALL \
             --new-session --die-with-parent --ro-bind / / --dev /dev --proc /proc --tmpfs /tmp --tmpfs /home \
             --ro-bind '{folder}' '{folder}' --ro-bind '{BINARY}' '{BINARY}' --chdir / {entered} \"$@\" {opened}"
        );
        let mut command = Command::new("bash");
        command.args(["-c", &sandbox, "bash", program]).args(arguments);
        for name in ["NOTIFY_SOCKET", "JOURNAL_STREAM", "CREDENTIALS_DIRECTORY"] {
            command.env_remove(name);
        }
        command
    }

    /// Starts a relay with the configuration at this path. It ends when its stdin is closed.
    fn start(&self, config: &Path) -> Child {
        let log = fs::File::create(self.folder.path().join("log")).unwrap();
        let arguments = ["run", "--while-stdin-is-open", "--config", config.to_str().unwrap()];
        let mut command = self.command(BINARY, &arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(log).spawn().unwrap()
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap()
    }
}

/// Attempts that the sandbox must forbid. Each program works outside the sandbox.
#[test]
fn sandbox_forbids_what_the_unit_forbids() {
    let Some(sandbox) = Sandbox::new() else { return };
    for (attempt, allowed) in [
        ("exit 0", true),
        ("echo > /etc/outbox-relay-was-here", false),
        ("unshare --user true", false),
        ("renice -n 19 $$", false),
        ("chroot / true", false),
    ] {
        let output = sandbox.command("sh", &["-c", attempt]).output().unwrap();
        assert_eq!(output.status.success(), allowed, "{attempt}: {output:?}");
    }
}

#[tokio::test]
async fn relay_works_with_exactly_what_the_unit_allows() {
    let Some(sandbox) = Sandbox::new() else { return };
    let outbox = Outbox::create("sandbox", 3).await;
    let relay = outbox.relay().set("admin", "listen", "127.0.0.1:0");
    let config = relay.write_config(sandbox.folder.path());
    let mut process = sandbox.start(&config);
    wait_until("the relay has started in the sandbox", STALLED, async || {
        let ended = process.try_wait().unwrap();
        assert!(ended.is_none(), "{ended:?}: {}", sandbox.log());
        sandbox.log().contains("relay started")
    })
    .await;
    rows::insert(&outbox, "order", 10, 0..1_000, Filling::Nothing).await;
    outbox.wait_until_drained(STALLED).await;
    drop(process.stdin.take());
    let status = tokio::task::spawn_blocking(move || process.wait().unwrap()).await.unwrap();
    assert!(status.success(), "{status}: {}", sandbox.log());
    assert!(sandbox.log().contains("shutdown requested"), "{}", sandbox.log());
    outbox.check().await.assert_exact();
    outbox.drop().await;
}
