//! Logs: text on a terminal, the journal under systemd, or JSON. They go to stderr or the journal, never to stdout. A panic is
//! logged too.

use super::failed::Failed;
use super::output::{LOGS_JSON, goes_to_the_journal};
use crate::config::{Log, LogFormat};
use settings::text::{commands, printable};
use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::{self, IsTerminal, Write};
use std::panic::PanicHookInfo;
use std::sync::atomic::Ordering;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::ParseError;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, fmt, reload};

/// The log filter, which can be changed at run time.
pub struct Filter(Box<dyn Fn(EnvFilter) -> Result<(), reload::Error>>);

impl Filter {
    /// Sets the level, in the syntax of `[log] level`.
    pub(crate) fn set(&self, level: &str) -> anyhow::Result<()> {
        (self.0)(filter(level)?)?;
        // Libraries that use the crate `log` check its maximum level first.
        if let Ok(level) = LevelFilter::current().to_string().parse() {
            log::set_max_level(level);
        }
        Ok(())
    }
}

pub fn init(log: &Log) -> Result<Filter, Failed> {
    let filter = filter(&log.level)
        .map_err(|error| Failed::configuration(format!("[log] level = {:?}: {error}", log.level)))?;
    let layer: Box<dyn Layer<Registry> + Send + Sync> = match log.format {
        LogFormat::Json => fmt::layer().json().with_writer(|| Printable { is_json: true }).boxed(),
        LogFormat::Journald => journald()?,
        LogFormat::Auto if goes_to_the_journal() => journald().or_else(|_| Ok::<_, Failed>(text()))?,
        LogFormat::Auto | LogFormat::Text => text(),
    };
    // The filter is a separate layer. With a per-layer filter, a `tracing::enabled!` that returns false would suppress
    // the next event of its thread.
    let (filter, handle) = reload::Layer::new(filter);
    tracing_subscriber::registry().with(layer).with(filter).init();
    LOGS_JSON.store(log.format == LogFormat::Json, Ordering::Relaxed);
    Ok(Filter(Box::new(move |filter| handle.reload(filter))))
}

/// These log each connection that ends, which the relay also reports.
const QUIETER: &str = "tokio_postgres=error,deadpool=error";

/// The crates of the relay, and the modules that `[log] level` calls them.
const CRATES: [(&str, &str); 3] = [
    ("outbox_relay::relay", "outbox_relay_core"),
    ("outbox_relay::postgres", "outbox_relay_postgres"),
    ("outbox_relay::kafka", "outbox_relay_kafka"),
];

/// Adds the quieter levels before `level`, which can override them, unless it sets a default of debug or lower.
fn filter(level: &str) -> Result<EnvFilter, ParseError> {
    // A name matches every target that begins with it, so `outbox_relay` covers all crates.
    let level = &CRATES.iter().fold(level.to_owned(), |level, (module, name)| level.replace(module, name));
    let default = level.split(',').find_map(|directive| directive.trim().parse::<LevelFilter>().ok());
    match default {
        Some(LevelFilter::OFF | LevelFilter::DEBUG | LevelFilter::TRACE) => EnvFilter::try_new(level),
        _ => EnvFilter::try_new(format!("{QUIETER},{level}")),
    }
}

/// Stderr without the control characters that the library does not escape. It writes whole lines, and escapes all others except
/// line breaks, tabs and those of its own colors. The commands in a text name the configuration file.
struct Printable {
    is_json: bool,
}

impl Write for Printable {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        // The colors, which are between escape characters.
        let text = if self.is_json { text } else { commands(&text).into_owned().into() };
        let parts: Vec<_> = text.split('\u{1b}').map(printable).collect();
        io::stderr().write_all(parts.join("\u{1b}").as_bytes())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

fn text() -> Box<dyn Layer<Registry> + Send + Sync> {
    fmt::layer()
        .with_ansi(io::stderr().is_terminal())
        .with_target(false)
        .with_writer(|| Printable { is_json: false })
        .boxed()
}

fn journald() -> Result<Box<dyn Layer<Registry> + Send + Sync>, Failed> {
    let layer = tracing_journald::layer().map_err(|error| {
        Failed::configuration(format!(
            "[log] format = \"journald\": cannot open the journal: {error}. Set it to \"auto\" or \"text\""
        ))
    })?;
    Ok(layer.with_field_prefix(Some("OUTBOX_RELAY".to_owned())).boxed())
}

/// Makes every panic log its message and abort the process, because a relay with a dead task must not look healthy. Rows in
/// flight are claimed again after the restart.
pub fn abort_on_panic() {
    let unlogged = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if tracing::dispatcher::has_been_set() {
            log_panic(panic);
        } else {
            unlogged(panic);
        }
        std::process::abort();
    }));
}

fn log_panic(panic: &PanicHookInfo<'_>) {
    let message = panic.payload_as_str().unwrap_or("no message");
    let place = panic.location().map(ToString::to_string).unwrap_or_default();
    tracing::error!(code = "internal_error", place, "internal error, aborting: {message}");
    let backtrace = Backtrace::capture();
    if backtrace.status() == BacktraceStatus::Captured {
        tracing::error!("{backtrace}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_about_each_connection_are_logged_only_on_request() {
        let quiet = |level: &str| filter(level).unwrap().to_string().contains("deadpool=error");
        for level in ["info", "warn", "info,outbox_relay=debug", "outbox_relay=trace,error"] {
            assert!(quiet(level), "{level}");
        }
        for level in ["debug", "TRACE", "off", "info,deadpool=warn", "outbox_relay=info,debug"] {
            assert!(!quiet(level), "{level}");
        }
        assert!(filter("outbox_relay=loud").is_err());
    }
}
