//! The demo as a user runs it, on a real PostgreSQL (`scripts/services up`).

#![allow(clippy::unwrap_used)] // clippy.toml allows it in test functions, this also in what they call

mod support;

use rustix::process::{Pid, Signal, kill_process};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use tokio_postgres::Client;

use support::database::{Database, run};

/// The binary of this build.
const DEMO: &str = env!("CARGO_BIN_EXE_outbox-demo");

fn demo(arguments: &[&str]) -> Command {
    let mut command = Command::new(DEMO);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

async fn run_demo(arguments: &[&str]) -> Output {
    let mut command = demo(arguments);
    tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
}

/// The number of written events in the summary line, which must report a success.
fn written(stdout: &str) -> usize {
    let summary =
        stdout.lines().find(|line| line.starts_with("written ")).unwrap_or_else(|| panic!("{stdout}"));
    let count = summary["written ".len()..].split(',').next().unwrap();
    assert_eq!(
        summary,
        format!("written {count}, received {count}, lost 0, duplicates 0, reordered 0"),
        "{stdout}"
    );
    count.parse().unwrap()
}

async fn schema_exists(client: &Client) -> bool {
    let sql = "SELECT 1 FROM pg_namespace WHERE nspname = 'outbox_demo'";
    !client.query(sql, &[]).await.unwrap().is_empty()
}

#[tokio::test]
async fn demo_shows_that_every_event_arrives_once_and_in_order_and_leaves_nothing_behind() {
    let database = Database::create("demo").await;
    let client = database.connect().await;
    let output = run_demo(&["--postgres", &database.url(), "--seconds", "3"]).await;
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{stdout}{stderr}");
    assert_eq!(stderr, "", "{stdout}");
    assert!(written(&stdout) > 0, "{stdout}");
    assert!(stdout.contains("rolled back; none of their events arrived"), "{stdout}");
    assert!(!stdout.contains('\x1b'), "no colors without a terminal: {stdout:?}");
    assert!(!schema_exists(&client).await, "{stdout}");
    database.drop(&[]).await;
}

#[tokio::test]
async fn ctrl_c_ends_the_demo_early_with_the_same_summary_and_nothing_left_behind() {
    let database = Database::create("demo_interrupted").await;
    let client = database.connect().await;
    let mut child = demo(&["--postgres", &database.url(), "--seconds", "600"]).spawn().unwrap();
    let begun = Instant::now();
    let stdout = tokio::task::spawn_blocking(move || {
        let shown = read_until(&mut child, "events written");
        let (_, rest) = shown.split_once("open its status page: http://").expect("the demo names its page");
        let page = status_page(rest.split('/').next().unwrap());
        assert!(page.contains("<h1>outbox-relay <span>outbox_demo.outbox</span></h1>"), "{page}");
        kill_process(Pid::from_child(&child), Signal::INT).unwrap();
        let output = child.wait_with_output().unwrap();
        let stdout = shown + &text(&output.stdout);
        assert_eq!(output.status.code(), Some(0), "{stdout}{}", text(&output.stderr));
        stdout
    });
    let stdout = stdout.await.unwrap();
    written(&stdout);
    assert!(begun.elapsed() < Duration::from_secs(60), "{stdout}");
    assert!(!schema_exists(&client).await, "{stdout}");
    database.drop(&[]).await;
}

fn status_page(address: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(format!("GET / HTTP/1.1\r\nHost: {address}\r\n\r\n").as_bytes()).unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    page
}

fn read_until(child: &mut Child, text_sought: &str) -> String {
    let stdout = child.stdout.as_mut().unwrap();
    let (mut read, mut byte) = (Vec::new(), [0]);
    while !text(&read).contains(text_sought) {
        assert_eq!(stdout.read(&mut byte).unwrap(), 1, "{}", text(&read));
        read.push(byte[0]);
    }
    text(&read)
}

#[tokio::test]
async fn demo_fails_if_an_event_arrives_that_no_writer_committed() {
    let database = Database::create("demo_phantom").await;
    let client = database.connect().await;
    let mut child = demo(&["--postgres", &database.url(), "--seconds", "15"]).spawn().unwrap();
    let reading = tokio::task::spawn_blocking(move || {
        let shown = read_until(&mut child, "events written");
        (child, shown)
    });
    let (child, shown) = reading.await.unwrap();
    let sql = "INSERT INTO outbox_demo.outbox (aggregate_type, aggregate_id, event_type) VALUES ('order', '1', 'X')";
    run(&client, sql).await;
    let output = tokio::task::spawn_blocking(|| child.wait_with_output().unwrap()).await.unwrap();
    let stdout = shown + &text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{stdout}{}", text(&output.stderr));
    assert!(stdout.contains("1 event arrived that was never committed"), "{stdout}");
    assert!(!schema_exists(&client).await, "{stdout}");
    database.drop(&[]).await;
}

#[tokio::test]
async fn schema_of_another_owner_is_kept_and_one_of_a_killed_demo_is_replaced() {
    let database = Database::create("demo_schema").await;
    let client = database.connect().await;
    run(&client, "CREATE SCHEMA outbox_demo; CREATE TABLE outbox_demo.precious ()").await;
    let arguments = ["--postgres", &database.url(), "--seconds", "1"];
    let output = run_demo(&arguments).await;
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(78), "{stderr}");
    assert!(stderr.contains("was not created by the demo"), "{stderr}");
    run(&client, "SELECT FROM outbox_demo.precious").await;

    run(&client, "COMMENT ON SCHEMA outbox_demo IS 'made by `outbox-demo`, which also drops it'").await;
    let output = run_demo(&arguments).await;
    assert_eq!(output.status.code(), Some(0), "{}{}", text(&output.stdout), text(&output.stderr));
    assert!(!schema_exists(&client).await);
    database.drop(&[]).await;
}

#[tokio::test]
async fn without_a_database_the_demo_explains_the_arguments() {
    let output = run_demo(&[]).await;
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("make demo") && stderr.contains("--postgres postgres://"), "{stderr}");

    let output = run_demo(&["--postgres", "postgres://nobody@127.0.0.1:1/nothing"]).await;
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(69), "{stderr}");
    assert!(stderr.contains("cannot be reached"), "{stderr}");
}
