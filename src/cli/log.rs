//! Logs: text on a terminal, the journal with its fields under systemd, JSON on request. Always on stderr or the
//! journal: stdout is for data.

use super::exit::Failed;
use crate::config::{Log, LogFormat};
use std::io::IsTerminal;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::ParseError;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, fmt, reload};

/// What is logged, to be changed while the program runs.
pub struct Filter(Box<dyn Fn(EnvFilter) -> Result<(), reload::Error>>);

impl Filter {
    /// Logs at this level from now on, in the syntax of `[log] level`.
    pub(crate) fn set(&self, level: &str) -> anyhow::Result<()> {
        (self.0)(filter(level)?)?;
        // Libraries that log by the crate `log` ask it first whether anybody listens.
        if let Ok(level) = LevelFilter::current().to_string().parse() {
            log::set_max_level(level);
        }
        Ok(())
    }
}

/// Begins to log.
pub fn init(log: &Log) -> Result<Filter, Failed> {
    let filter = filter(&log.level)
        .map_err(|error| Failed::Configuration(anyhow::anyhow!("[log] level = {:?}: {error}", log.level)))?;
    let under_systemd = std::env::var_os("JOURNAL_STREAM").is_some() && !std::io::stderr().is_terminal();
    let layer: Box<dyn Layer<Registry> + Send + Sync> = match log.format {
        LogFormat::Json => fmt::layer().json().with_writer(std::io::stderr).boxed(),
        LogFormat::Journald => journald()?,
        LogFormat::Auto if under_systemd => journald().or_else(|_| Ok::<_, Failed>(text()))?,
        LogFormat::Auto | LogFormat::Text => text(),
    };
    // The filter stands beside the layer, not on it: with one on it, `tracing::enabled!` that says no swallows the next
    // event of its thread.
    let (filter, handle) = reload::Layer::new(filter);
    tracing_subscriber::registry().with(layer).with(filter).init();
    Ok(Filter(Box::new(move |filter| handle.reload(filter))))
}

/// What these say of a connection that ended, a line each, the relay says in one.
const QUIETER: &str = "tokio_postgres=error,deadpool=error";

/// A level for one of the quieter parts comes before theirs; who asks for everything at level debug gets them, too.
fn filter(level: &str) -> Result<EnvFilter, ParseError> {
    let default = level.split(',').find_map(|directive| directive.trim().parse::<LevelFilter>().ok());
    match default {
        Some(LevelFilter::OFF | LevelFilter::DEBUG | LevelFilter::TRACE) => EnvFilter::try_new(level),
        _ => EnvFilter::try_new(format!("{QUIETER},{level}")),
    }
}

fn text() -> Box<dyn Layer<Registry> + Send + Sync> {
    fmt::layer()
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .with_writer(std::io::stderr)
        .boxed()
}

fn journald() -> Result<Box<dyn Layer<Registry> + Send + Sync>, Failed> {
    let layer = tracing_journald::layer().map_err(|error| {
        Failed::Configuration(anyhow::anyhow!(
            "[log] format = \"journald\": the journal cannot be reached: {error}"
        ))
    })?;
    Ok(layer.with_field_prefix(Some("OUTBOX_RELAY".to_owned())).boxed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_about_each_connection_are_left_out_unless_somebody_asks_for_them() {
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
