//! `docs/error-codes.md` contains the tables of the code. `make docs` writes it.

use crate::support::rendered;
use kafka::errors::{known, reason};
use postgres::connection::sqlstates::SQLSTATES;
use rdkafka::types::RDKafkaRespErr;
use relay::failure::{FailureKind, FaultKind};
use relay::reason::{REASONS, Reason};

fn kind(kind: FailureKind) -> &'static str {
    match kind {
        FailureKind::Unknown => "unknown",
        FailureKind::Row => "the row",
        FailureKind::Topic => "the topic",
        FailureKind::Cluster => "the cluster",
        FailureKind::Session => "the session",
    }
}

fn reasons() -> String {
    let mut table = String::from("| Reason | Kind | What it means | What to do |\n|---|---|---|---|\n");
    for Reason { word, kind: of, means, remedy } in REASONS {
        table += &format!("| `{word}` | {} | {means} | {remedy} |\n", kind(*of));
    }
    table
}

fn codes() -> String {
    let mut table = String::from("| Code | Name | Kind | Reason | In the log |\n|---|---|---|---|---|\n");
    for code in known() {
        let reason = reason(code);
        let name = format!("{:?}", RDKafkaRespErr::try_from(code as i32).unwrap());
        let name = name.trim_start_matches("RD_KAFKA_RESP_ERR_");
        let number = code as i32;
        table += &format!("| {number} | `{name}` | {} | `{}` | {code} |\n", kind(reason.kind), reason.word);
    }
    table
}

fn sqlstates() -> String {
    let mut table = String::from("| SQLSTATE | Kind | What it means | What to do |\n|---|---|---|---|\n");
    for entry in SQLSTATES {
        let kind = match entry.kind {
            FaultKind::Unavailable => "unavailable",
            FaultKind::Contended => "contended",
            FaultKind::Refused => "refused",
            FaultKind::Probed => unreachable!("not a SQLSTATE"),
            FaultKind::Data => "data",
            FaultKind::TimedOut => "timed out",
        };
        table += &format!("| {} | {kind} | {} | {} |\n", entry.state, entry.means, entry.remedy);
    }
    table
}

#[test]
fn page_shows_the_tables_of_the_code() {
    let parts = [
        ("crates/relay/src/reason.rs", reasons()),
        ("crates/kafka/src/errors.rs", codes()),
        ("crates/postgres/src/connection/sqlstates.rs", sqlstates()),
    ];
    rendered::check("docs/error-codes.md", &parts);
}
