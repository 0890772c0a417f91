//! The status page: `GET /`, rendered here, without scripts and without other resources.
//!
//! `history` has the samples for the charts, `facts` what is read from the database, and `view` puts both into `page.html`.
//! The page shows no payload and no secret. It shows keys only if it is served on a loopback address.

mod chart;
mod facts;
#[cfg(test)]
mod fixture;
mod history;
mod reader;
mod style;
mod tables;
mod view;

use super::{AdminState, Observed};
use crate::config::Config;
use crate::status::report::LocalRelay;
use askama::Template;
use axum::extract::{RawQuery, State};
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use facts::Facts;
use history::{History, SAMPLE_EVERY};
use reader::Reader;
use relay::health::stats::Stats;
use settings::text::in_line;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};
use view::{Shown, View};

const SAYS: usize = 300;

/// The status page of one relay.
pub(super) struct Page {
    stats: Arc<Stats>,
    config: watch::Receiver<Config>,
    config_file: Option<PathBuf>,
    address: SocketAddr,
    history: History,
    facts: Facts,
}

impl Page {
    pub(super) fn new(observed: Observed, address: SocketAddr) -> Page {
        let Observed { stats, config, config_file } = observed;
        Page { stats, config, config_file, address, history: History::default(), facts: Facts::new() }
    }

    /// Takes samples, and reads the database while there are viewers. Runs forever.
    pub(super) async fn keep(&self) -> Infallible {
        let mut reader = Reader::new(self);
        tokio::select! {
            never = self.keep_sampling() => match never {},
            never = self.facts.keep(&mut reader) => match never {},
        }
    }

    async fn keep_sampling(&self) -> Infallible {
        let mut ticks = interval(SAMPLE_EVERY);
        // After a freeze, one sample is enough.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.history.sample(&self.stats);
        }
    }

    /// The state of this relay, as `/readyz` reports it.
    fn here(&self) -> LocalRelay {
        let not_ready = self.stats.not_ready();
        LocalRelay {
            address: self.address.to_string(),
            ready: not_ready.is_none(),
            says: in_line(&not_ready.unwrap_or_else(|| self.stats.ready()), SAYS),
        }
    }

    async fn html(&self, refreshes: bool) -> askama::Result<String> {
        let known = self.facts.current().await;
        let config = self.config.borrow().clone();
        let shown = Shown {
            known: &known,
            here: self.here(),
            stats: &self.stats,
            intervals: &self.history.intervals(),
            config: &config,
            shows_keys: self.address.ip().is_loopback(),
            refreshes,
            now: SystemTime::now(),
        };
        View::new(&shown).render()
    }
}

pub(super) async fn show(State(shown): State<AdminState>, RawQuery(query): RawQuery) -> Response {
    let refreshes = query.as_deref() != Some("refresh=off");
    match shown.page.html(refreshes).await {
        Ok(html) => {
            (protection(), [(header::CONTENT_TYPE, "text/html; charset=utf-8")], html).into_response()
        }
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

/// Headers that forbid scripts, other resources, framing, caching and reading by other sites.
fn protection() -> [(HeaderName, HeaderValue); 6] {
    [
        (header::CONTENT_SECURITY_POLICY, style::policy()),
        (header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY")),
        (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
        (HeaderName::from_static("cross-origin-resource-policy"), HeaderValue::from_static("same-origin")),
        (HeaderName::from_static("cross-origin-opener-policy"), HeaderValue::from_static("same-origin")),
    ]
}

#[cfg(test)]
mod browser;
#[cfg(test)]
mod tests;
