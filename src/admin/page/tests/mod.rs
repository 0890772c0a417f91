//! The page of each state, and its protection.

mod browser;
mod fixture;
mod reader;

use super::*;
use crate::status::Report;
use fixture::{HOSTILE, Scene, blocked, dead, held, here, intervals, key, pause, report, states};
use postgres::diagnose::status::{BlockedKeys, DeadLetters};
use std::time::Duration;

fn page(name: &str) -> String {
    let found = states().into_iter().find(|(state, _)| *state == name);
    found.unwrap_or_else(|| panic!("{name}")).1.html()
}

#[track_caller]
fn assert_shows(html: &str, texts: &[&str]) {
    for text in texts {
        assert!(html.contains(text), "{text:?} is missing in {html}");
    }
}

#[test]
fn healthy_page_shows_the_verdict_the_figures_and_the_configuration() {
    let html = page("healthy");
    assert_shows(
        &html,
        &[
            "<title>healthy · public.outbox · outbox-relay</title>",
            "<section class=\"verdict healthy\"",
            "the oldest waiting event is 1s old",
            "<dt>Unsent events</dt><dd>3</dd>",
            "4.2 ms",
            "1 of 2 busy",
            "aria-label=\"Events sent: now ",
            "Nothing is paused.",
            "No topic is held.",
            "No key is blocked.",
            "There are no dead letters.",
            "2 of 64 lanes have unsent events; the oldest event is 1s old, in lane 3",
            "1 publishing (for 45ms), 1 idle",
            "PostgreSQL 18.1",
            "deletes events 1 day after they are sent",
            "<caption>[relay]</caption>",
            "<th scope=\"row\">batch_bytes</th><td>8MiB</td>",
            "<a href=\"metrics\">",
            "<a href=\"readyz\">",
            "<meta http-equiv=\"refresh\" content=\"5\">",
        ],
    );
    assert!(!html.contains("hunter2"), "{html}");
}

#[test]
fn page_of_each_state_names_it_and_what_to_do() {
    for (name, texts) in [
        ("behind", &["verdict behind", "about 40,000", "status --watch --config", "99+"][..]),
        ("kafka-away", &["verdict stopped", "not relaying", "brokers-down", "class=\"away\""]),
        (
            "held-topic",
            &["verdict behind", "<code>events.invoice</code>", "12 probes so far", "Fix: create the topic"],
        ),
        (
            "paused",
            &[
                "verdict stopped",
                "everything is paused by alice",
                "migrating consumers",
                "outbox-relay resume",
            ],
        ),
        ("starting", &["not relaying", "not reached yet", "Waiting for the database", "–"]),
        (
            "postgres-away",
            &["verdict stopped", "The database could not be read", "Connection refused", "PostgreSQL 18.1"],
        ),
    ] {
        assert_shows(&page(name), texts);
    }
}

#[test]
fn without_the_database_a_ready_relay_is_unknown_and_not_healthy() {
    let mut scene = Scene::of(report());
    scene.known.fault = Some("no response within 15s".to_owned());
    assert_shows(&scene.html(), &["verdict unknown", "no response within 15s", "The outbox figures are "]);
    // The same if the result is too old, for example because a reading hangs.
    scene.known.fault = None;
    let snapshot = Snapshot { read_at: SystemTime::now() - Duration::from_secs(60), ..fixture::snapshot() };
    scene.known.last = Some(Arc::new(snapshot));
    let html = scene.html();
    assert_shows(&html, &["verdict unknown", "are 1m old", "has not answered yet"]);
    assert!(!html.contains("verdict healthy"), "{html}");
}

#[test]
fn relay_that_is_not_ready_is_named_once() {
    let html = page("kafka-away");
    assert!(!html.contains("This relay is not ready"), "the verdict names it: {html}");
    // Another relay may send the events.
    let mut scene = Scene::of(report());
    scene.here = here(false, "Kafka: no broker answers");
    assert_shows(
        &scene.html(),
        &["verdict healthy", "<strong>This relay is not ready.</strong> Kafka: no broker answers"],
    );
}

#[test]
fn text_from_the_database_is_escaped_everywhere() {
    let html = page("everything");
    let escaped = "&#60;script&#62;alert(1)&#60;/script&#62;";
    assert!(html.matches(escaped).count() >= 8, "{html}");
    for raw in ["<script", "<img", HOSTILE] {
        assert!(!html.contains(raw), "{raw}");
    }
    assert_eq!(html.matches("</style>").count(), 1);
    let mut scene = Scene::of(report());
    scene.known.fault = Some(HOSTILE.to_owned());
    scene.here = here(false, HOSTILE);
    assert!(!scene.html().contains("<script"));
}

#[test]
fn dead_letters_are_counted_by_reason_and_long_lists_are_shortened() {
    let mut report = report();
    report.dead_letters = DeadLetters {
        rows: 12,
        at_least: false,
        recent: 0,
        by_reason: vec![dead("record-too-large", 7), dead("new-reason", 5)],
    };
    report.blocked_keys = BlockedKeys { keys: 7_000, at_least: true, oldest: vec![blocked("42")] };
    assert_shows(
        &Scene::of(report).html(),
        &[
            "record-too-large",
            "larger than the topic's limit".replace('\'', "&#39;").as_str(),
            "new-reason",
            "Showing the oldest 1 of 7,000.",
            "7,000+",
        ],
    );
}

#[test]
fn keys_are_shown_only_on_loopback() {
    let mut scene = Scene::of(Report {
        blocked_keys: BlockedKeys { keys: 1, at_least: false, oldest: vec![blocked("personal-data")] },
        paused: vec![pause(key("customer", "personal-data"), None)],
        paused_total: 1,
        held_topics: vec![held("events.customer", "")],
        ..report()
    });
    assert_eq!(scene.html().matches("personal-data").count(), 2);
    scene.shows_keys = false;
    let html = scene.html();
    assert!(!html.contains("personal-data"), "{html}");
    assert_shows(&html, &["a key of customer", "hidden", "events.customer", "4711"]);
}

#[test]
fn policy_allows_only_the_style_sheet_of_the_page() {
    let policy = POLICY.to_str().unwrap();
    assert!(policy.starts_with("default-src 'none'; style-src 'sha256-"), "{policy}");
    assert!(policy.ends_with("base-uri 'none'; form-action 'none'; frame-ancestors 'none'"), "{policy}");
    assert!(!policy.contains("unsafe"), "{policy}");
    for (state, scene) in states() {
        let html = scene.html();
        let style = html.split_once("<style>").unwrap().1.split_once("</style>").unwrap().0;
        assert_eq!(style, STYLE, "{state}: the hash is of exactly this text");
        for forbidden in [
            " style=", "<script", "<iframe", "<link", "<form", "src=", "url(", "@import", "http://",
            "https://",
        ] {
            let shown = html.replace(&escape(HOSTILE), "");
            assert!(!shown.contains(forbidden), "{state}: {forbidden}");
        }
        assert!(html.len() < 200_000, "{state}: {} bytes", html.len());
    }
}

fn escape(text: &str) -> String {
    let escaped = [('&', "&#38;"), ('<', "&#60;"), ('>', "&#62;"), ('"', "&#34;"), ('\'', "&#39;")];
    escaped.into_iter().fold(text.to_owned(), |text, (raw, escaped)| text.replace(raw, escaped))
}

#[test]
fn refreshing_can_be_stopped() {
    let mut scene = Scene::of(report());
    scene.intervals = intervals(0, |_| true);
    scene.refreshes = false;
    let html = scene.html();
    assert!(!html.contains("http-equiv"), "{html}");
    assert_shows(&html, &["<a href=\"?\">refresh automatically</a>", ": no values yet\""]);
}

#[test]
fn rendering_is_fast() {
    let scene = &states().pop().unwrap().1;
    let took = (0..50).map(|_| {
        let begun = std::time::Instant::now();
        scene.html();
        begun.elapsed()
    });
    // Other tests use the same cores.
    let fastest = took.min().unwrap();
    println!("one page takes {fastest:?}, {} bytes", scene.html().len());
    assert!(fastest < Duration::from_millis(20), "{fastest:?}");
}
