//! How the server plans what the product asks: JIT never compiles a statement, and a relay reads the outbox by its
//! indexes.
//!
//! A penalty for a disabled path exceeds `jit_above_cost`, so on a server with JIT even a read of one row would be compiled
//! at each execution.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::support::database::run;
use crate::support::outbox::Outbox;
use crate::support::postgres_server::PostgresServer;
use crate::support::wait::{STALLED, wait_until};

/// `log_settings` lists the settings of the planner that differ from their defaults.
const LOG_ALL_PLANS: &[(&str, &str)] = &[
    ("shared_preload_libraries", "'auto_explain'"),
    ("auto_explain.log_min_duration", "0"),
    ("auto_explain.log_nested_statements", "on"),
    ("auto_explain.log_settings", "on"),
    ("log_line_prefix", "'user=%u '"),
];

/// A statement that runs this often is one that a relay repeats.
const REPEATED: usize = 10;

/// The commands that read or change the outbox, and can succeed here.
const COMMANDS: &[&[&str]] = &[
    &["status"],
    &["doctor"],
    &["check-config", "--connect"],
    &["reap"],
    &["verify"],
    &["dead-letters", "list"],
    &["dead-letters", "requeue", "--all", "--yes"],
    &["dead-letters", "discard", "--all", "--yes"],
    &["dead-letters", "history"],
    &["blocked-keys", "list"],
    &["pause", "--topic", "TOPIC"],
    &["status", "--json"],
    &["resume", "--topic", "TOPIC"],
    &["replay", "--topic", "TOPIC", "--since", "1h", "--dry-run"],
    &["replay", "--topic", "TOPIC", "--since", "1h"],
];

/// The plans in the server's log that are not of the test itself, which connects as `postgres`. A plan is the line of the session and the indented lines after it.
fn plans(log: &str) -> Vec<String> {
    let mut plans: Vec<String> = Vec::new();
    let mut is_ours = false;
    for line in log.lines() {
        if !line.starts_with('\t') {
            is_ours = !line.starts_with("user=postgres ") && line.ends_with("plan:");
            if is_ours {
                plans.push(String::new());
            }
        } else if is_ours {
            let plan = plans.last_mut().unwrap();
            plan.push_str(line);
            plan.push('\n');
        }
    }
    plans
}

#[tokio::test]
async fn no_statement_is_compiled_and_the_outbox_is_read_by_its_indexes() {
    let server = PostgresServer::start(LOG_ALL_PLANS).await;
    let outbox = Outbox::create_on(&server, "planned", 3).await;
    run(
        &outbox.client,
        "INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type, headers)
         SELECT CASE WHEN n % 10 = 0 THEN 'missing' ELSE 'order' END, 'order-' || n, 'Happened',
                CASE WHEN n % 100 = 1 THEN '{\"number\": 1}'::jsonb END
         FROM generate_series(1, 1000) AS n",
    )
    .await;
    let mut relay =
        outbox.relay().set("reaper", "retention", "1s").set("reaper", "interval", "1s").start().await;
    wait_until("sent rows are reaped and a topic is held", STALLED, async || {
        let sent = "SELECT count(*) FROM app.outbox WHERE aggregate_type = 'order'";
        outbox.count(sent).await == 0 && !outbox.holds().await.is_empty()
    })
    .await;
    for command in COMMANDS {
        let topic = outbox.topic("order");
        let command: Vec<&str> =
            command.iter().map(|word| if *word == "TOPIC" { topic.as_str() } else { word }).collect();
        let relay = if command[0] == "check-config" { outbox.relay() } else { outbox.operator() };
        let ended = relay.command(&command);
        assert!(ended.code != 2, "{command:?}: {}{}", ended.stdout, ended.stderr);
    }
    relay.stop().await;

    let plans = plans(&server.whole_log());
    assert!(plans.len() > 100, "{} plans", plans.len());
    let mut times: HashMap<&str, usize> = HashMap::new();
    for plan in &plans {
        assert!(plan.contains("jit = 'off'"), "JIT may compile\n{plan}");
        *times.entry(plan.split("(cost=").next().unwrap()).or_default() += 1;
    }
    // Small tables, such as that of the holds, are read as a whole.
    let repeated = |plan: &&String| times[plan.split("(cost=").next().unwrap()] >= REPEATED;
    for plan in plans.iter().filter(repeated).filter(|plan| plan.contains(" on outbox ")) {
        assert!(!plan.contains("Seq Scan on outbox ") && !plan.contains("Sort  ("), "no index:\n{plan}");
    }
}

/// How long the idle relay is watched, and the CPU time that its sessions may use in that time. With JIT it was two thirds.
const WATCHED: Duration = Duration::from_secs(5);
const CPU_MOST: Duration = Duration::from_millis(500);

/// The CPU time of these processes, from /proc. A clock tick is 10 ms on Linux.
fn cpu_time(pids: &[i32]) -> Duration {
    let ticks = |pid: &i32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
        fields.split_whitespace().skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap()).sum::<u64>()
    };
    Duration::from_millis(pids.iter().map(ticks).sum::<u64>() * 10)
}

#[tokio::test]
async fn sessions_of_an_idle_relay_need_little_of_a_core() {
    let server = PostgresServer::start(&[]).await;
    let outbox = Outbox::create_on(&server, "idle", 3).await;
    let relay = outbox.start_relay().await;
    run(
        &outbox.client,
        "INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type) VALUES ('order', '1', 'x')",
    )
    .await;
    outbox.wait_until_drained(STALLED).await;
    let sql = "SELECT array_agg(pid) FROM pg_stat_activity WHERE usename = $1";
    let pids: Vec<i32> = outbox.client.query_one(sql, &[&outbox.roles.relay()]).await.unwrap().get(0);
    let (begun, before) = (Instant::now(), cpu_time(&pids));
    tokio::time::sleep(WATCHED).await; // the time that is measured
    let used = cpu_time(&pids).saturating_sub(before).mul_f64(WATCHED.div_duration_f64(begun.elapsed()));
    assert!(used < CPU_MOST, "{used:?} of CPU time in {WATCHED:?}\n{}", relay.log());
}
