//! The report of `status` as one screen. The first line is the verdict.

use crate::status::report::Report;
use settings::text::{bytes, command, commands, counted, in_line, rate, seconds, thousands};
use std::fmt;

/// The longest topic name in Kafka.
const TOPIC_SHOWN: usize = 249;
const TEXT_SHOWN: usize = 100;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {}", self.verdict.state.words(), self.verdict.why)?;
        if let Some(command) = &self.verdict.command {
            writeln!(f, "              next: {command}")?;
        }
        writeln!(
            f,
            "outbox        {} on PostgreSQL {}, schema at migration {}, outbox-relay {}",
            self.table,
            self.postgres_version,
            self.schema_migration.as_deref().map_or_else(|| "unknown".to_owned(), migration),
            self.relay_version
        )?;
        self.fmt_backlog(f)?;
        self.fmt_flow(f)?;
        self.fmt_relays(f)?;
        self.fmt_paused(f)?;
        self.fmt_held(f)?;
        self.fmt_blocked(f)?;
        self.fmt_dead_letters(f)?;
        self.fmt_table(f)
    }
}

/// "6 (retention)" instead of "6 retention".
fn migration(name: &str) -> String {
    name.split_once(' ').map_or_else(|| name.to_owned(), |(number, name)| format!("{number} ({name})"))
}

impl Report {
    fn fmt_backlog(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let backlog = &self.backlog;
        let about = if backlog.estimated { "about " } else { "" };
        let oldest = backlog.oldest_age_seconds;
        let oldest = oldest.map(|age| format!(", the oldest is {} old", seconds(age))).unwrap_or_default();
        writeln!(f, "unsent        {about}{}{oldest}", counted(backlog.rows as u64, "row"))?;
        let first = &backlog.first;
        if first.rows > first.free {
            writeln!(
                f,
                "              of the first {}: {} paused, {} in held topics, {} with blocked keys, {} ready",
                first.rows, first.paused, first.of_held_topics, first.of_blocked_keys, first.free
            )?;
        }
        Ok(())
    }

    fn fmt_flow(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.rates {
            None => writeln!(f, "rates         unknown until the next refresh")?,
            Some(rates) => writeln!(
                f,
                "rates         {} rows/s inserted, {} sent, {} deleted, over {:.1} s",
                rate(rates.inserted_per_second),
                rate(rates.sent_per_second),
                rate(rates.deleted_per_second),
                rates.over_seconds
            )?,
        }
        let Some(latency) = &self.latency else {
            return writeln!(f, "latency       unknown: rows are deleted when they are sent");
        };
        match (latency.p50_seconds, latency.p95_seconds, latency.p99_seconds, latency.max_seconds) {
            (Some(p50), Some(p95), Some(p99), Some(max)) => writeln!(
                f,
                "latency       p50 {}, p95 {}, p99 {}, max {} (latest {}, the last sent {} ago)",
                seconds(p50),
                seconds(p95),
                seconds(p99),
                seconds(max),
                counted(latency.rows.unsigned_abs(), "row"),
                seconds(latency.latest_sent_age_seconds.unwrap_or_default())
            ),
            _ => writeln!(f, "latency       unknown: no row has been sent"),
        }
    }

    fn fmt_relays(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let relays = &self.relays;
        if relays.connections == 0 {
            writeln!(f, "relays        none connected as {:?}", relays.application_name)?;
        } else {
            let plural = if relays.addresses == 1 { "" } else { "es" };
            writeln!(
                f,
                "relays        {} as {:?} from {} address{plural}",
                counted(relays.connections as u64, "connection"),
                relays.application_name,
                relays.addresses
            )?;
        }
        if relays.pooled {
            writeln!(
                f,
                "              connected through a pooler: these are its connections, not the relays'"
            )?;
        }
        for place in relays.places() {
            let name = in_line(place.name, TEXT_SHOWN);
            writeln!(f, "  {name} at {}: {}", place.address, place.activities())?;
        }
        if let Some(here) = &relays.here {
            writeln!(f, "  relay at http://{}: {}", here.address, here.says)?;
        }
        Ok(())
    }

    fn fmt_paused(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.paused.is_empty() {
            return writeln!(f, "paused        nothing");
        }
        writeln!(f, "paused        {}; the events in each scope wait", self.paused.len())?;
        for pause in &self.paused {
            let reason = pause.reason.as_deref().map(|reason| format!(": {}", in_line(reason, TEXT_SHOWN)));
            let reason = reason.unwrap_or_default();
            writeln!(
                f,
                "  {}  by {} since {}{reason}",
                pause.name,
                in_line(&pause.by, TEXT_SHOWN),
                pause.since
            )?;
        }
        writeln!(
            f,
            "      fix: when the reason no longer applies, run `{}` with the scope of the pause",
            command("resume")
        )
    }

    fn fmt_held(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.held_topics.is_empty() {
            return writeln!(f, "held topics   none");
        }
        writeln!(
            f,
            "held topics   {}; their events wait, but other topics continue",
            thousands(self.held_topics_total.unsigned_abs() as usize)
        )?;
        for held in &self.held_topics {
            let topic = in_line(&held.topic, TOPIC_SHOWN);
            writeln!(f, "  {topic}  {} since {}", in_line(&held.reason, TEXT_SHOWN), held.since)?;
            writeln!(f, "      {}", in_line(held.error.lines().next().unwrap_or_default(), 1_000))?;
            writeln!(
                f,
                "      {}, next at {}",
                counted(held.probes.unsigned_abs().into(), "probe"),
                held.next_probe
            )?;
            writeln!(f, "      fix: {}", commands(held.remedy))?;
        }
        let more = self.held_topics_total.unsigned_abs() as usize - self.held_topics.len();
        if more > 0 {
            writeln!(f, "  and {} more", thousands(more))?;
        }
        Ok(())
    }

    fn fmt_blocked(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let blocked = &self.blocked_keys;
        if blocked.keys == 0 {
            return writeln!(f, "blocked keys  none");
        }
        let plus = if blocked.at_least { "at least " } else { "" };
        writeln!(
            f,
            "blocked keys  {plus}{}; their events wait behind a rejected event, but other keys continue",
            blocked.keys
        )?;
        for key in &blocked.oldest {
            writeln!(
                f,
                "  {}  key {}, row {}  {} since {}",
                in_line(&key.topic, TOPIC_SHOWN),
                in_line(&key.key, TEXT_SHOWN),
                key.outbox_id,
                in_line(&key.reason, TEXT_SHOWN),
                key.since
            )?;
            writeln!(f, "      fix: {}", commands(key.remedy))?;
        }
        if blocked.keys > blocked.oldest.len() as i64 {
            writeln!(f, "  and more; to list all, run: {}", command("blocked-keys list"))?;
        }
        Ok(())
    }

    fn fmt_dead_letters(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dead = &self.dead_letters;
        let plus = if dead.at_least { "at least " } else { "" };
        let recent = match dead.recent {
            0 => String::new(),
            recent => format!(", {recent} of them in the last 10 minutes"),
        };
        writeln!(f, "dead letters  {plus}{}{recent}", dead.rows)?;
        for reason in &dead.by_reason {
            writeln!(f, "              {} {}", reason.rows, in_line(&reason.reason, TEXT_SHOWN))?;
        }
        if dead.rows > 0 {
            writeln!(f, "      fix: run `{}`, then requeue or discard them", command("dead-letters list"))?;
        }
        Ok(())
    }

    fn fmt_table(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fmt_reaper(f)?;
        match &self.vacuum_held_back_by {
            None => writeln!(f, "vacuum        not held back")?,
            Some(by) => {
                let age = by.age_seconds.map(|age| format!(", {} old", seconds(age))).unwrap_or_default();
                writeln!(
                    f,
                    "vacuum        held back by {} {}{age}, {} behind",
                    by.what,
                    in_line(&by.name, TEXT_SHOWN),
                    counted(by.transactions.unsigned_abs().into(), "transaction")
                )?;
            }
        }
        let size = &self.size;
        writeln!(
            f,
            "size          table {}, indexes {}, live rows: about {}, dead rows: about {}",
            bytes(size.table_bytes),
            bytes(size.index_bytes),
            thousands(size.rows_estimated.unsigned_abs() as usize),
            thousands(size.dead_rows_estimated.unsigned_abs() as usize)
        )?;
        writeln!(f, "vacuumed      {}", size.vacuumed_at.as_deref().unwrap_or("never"))
    }

    fn fmt_reaper(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reaper = &self.reaper;
        let rule = if reaper.enabled {
            format!("deletes rows {} after they are sent", seconds(reaper.retention_seconds))
        } else {
            "off".to_owned()
        };
        let state = match reaper.oldest_sent_age_seconds {
            None => String::new(),
            Some(age) if reaper.behind => {
                format!("; behind: the oldest was sent {} ago", seconds(age))
            }
            Some(age) => format!("; the oldest was sent {} ago", seconds(age)),
        };
        let hint = match reaper.enabled {
            true => String::new(),
            false => format!("; to delete sent rows, run: {}", command("reap")),
        };
        writeln!(f, "reaper        {rule}{state}{hint}")
    }
}
