//! Draws `docs/images/dashboard.svg`: the panels of the dashboard with data that a real Prometheus scraped from two
//! real relays. It takes two minutes, so you run it manually: `cargo test --test integration -- --ignored
//! dashboard_is_drawn`.

use super::names::with_variables;
use super::prometheus::Prometheus;
use super::{DASHBOARD, ROOT, read};
use crate::support::kafka_proxy::Proxy;
use crate::support::outbox::Outbox;
use crate::support::relay::RelayProcess;
use crate::support::rows::{self, Filling};
use serde_json::Value;
use std::fmt::Write;
use std::ops::Range;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const SECONDS: u64 = 120;
const COLUMN: f64 = 56.0;
const ROW: f64 = 26.0;
const LEGENDS_MAX: usize = 4;
const COLOURS: [&str; 6] = ["#73bf69", "#f2cc0c", "#5794f2", "#ff9830", "#f2495c", "#b877d9"];

/// The load, second by second: a trickle, a flood, a Kafka outage, a missing topic, and events that Kafka refuses.
async fn load(outbox: &mut Outbox, kafka: &mut Proxy) {
    let mut next = 0;
    let begun = tokio::time::Instant::now();
    for second in 0..SECONDS {
        let rows: i64 = match second {
            20..30 => 8_000,
            _ => 200,
        };
        rows::insert(outbox, "order", 1_000, next..next + rows, Filling::Random(200)).await;
        rows::insert(outbox, "payment", 100, next..next + 50, Filling::Random(50)).await;
        next += rows;
        match second {
            50 => kafka.close().await,
            65 => kafka.resume().await,
            80 => rows::insert(outbox, "invoice", 10, 0..100, Filling::Nothing).await,
            90 => rows::insert(outbox, "a b", 10, 0..8, Filling::Nothing).await,
            105 => outbox.create_topic("invoice", 3).await,
            _ => {}
        }
        tokio::time::sleep_until(begun + Duration::from_secs(second + 1)).await;
    }
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64()
}

#[tokio::test]
#[ignore = "takes two minutes and writes an image for the docs"]
async fn dashboard_is_drawn() {
    let mut outbox = Outbox::create("orders", 3).await;
    outbox.create_topic("payment", 3).await;
    let mut kafka = Proxy::open().await;
    let relay = outbox.relay().set("kafka", "bootstrap_servers", kafka.address()).set(
        "admin",
        "listen",
        "127.0.0.1:0",
    );
    let relay =
        relay.set_kafka_property("statistics.interval.ms", "1000").set("relay", "publish_timeout", "5s");
    let relays = [relay.clone().start().await, relay.start().await];
    let prometheus = Prometheus::start(&relays.each_ref().map(RelayProcess::address)).await;
    let start = now();
    load(&mut outbox, &mut kafka).await;
    let mut shown = vec![(outbox.topic(""), "events.".to_owned())];
    shown.extend(relays.iter().zip(1..).map(|(relay, number)| (relay.address(), format!("relay-{number}"))));
    let mut picture = Picture { prometheus, between: start..now(), shown, svg: String::new() };
    let dashboard: Value = serde_json::from_str(&read(DASHBOARD)).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    for panel in panels {
        picture.panel(panel).await;
    }
    let bottom = panels.iter().map(|panel| grid(panel, "y") + grid(panel, "h")).fold(0.0, f64::max) * ROW;
    let svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {bottom}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#111217\"/>\n{}</svg>\n",
        24.0 * COLUMN,
        picture.svg
    );
    std::fs::write(format!("{ROOT}/docs/images/dashboard.svg"), svg).unwrap();
    drop(relays);
    outbox.drop().await;
}

fn grid(panel: &Value, name: &str) -> f64 {
    panel["gridPos"][name].as_f64().unwrap()
}

struct Picture {
    prometheus: Prometheus,
    between: Range<f64>,
    /// Replacements for names that are specific to this run.
    shown: Vec<(String, String)>,
    svg: String,
}

impl Picture {
    async fn panel(&mut self, panel: &Value) {
        let (x, y) = (grid(panel, "x") * COLUMN, grid(panel, "y") * ROW);
        let (w, h) = (grid(panel, "w") * COLUMN - 6.0, grid(panel, "h") * ROW - 6.0);
        let title = panel["title"].as_str().unwrap();
        let kind = panel["type"].as_str().unwrap();
        if kind == "row" {
            return self.text(x + 4.0, y + 18.0, "#ffffff", "font-size=\"16\"", title);
        }
        _ = writeln!(
            self.svg,
            "<rect x=\"{x}\" y=\"{y}\" width=\"{w}\" height=\"{h}\" fill=\"#181b1f\" stroke=\"#2c3235\"/>"
        );
        self.text(x + 8.0, y + 16.0, "#ccccdc", "font-weight=\"bold\"", title);
        let series = self.series(panel).await;
        let unit = panel["fieldConfig"]["defaults"]["unit"].as_str().unwrap_or("short");
        match kind {
            "stat" => self.stat(x + 12.0, y + 0.75 * h, unit, &series),
            "table" => self.table(x + 12.0, y + 36.0, &series),
            _ => self.lines([x + 8.0, y + 26.0, w - 16.0, h - 48.0], unit, &series),
        }
    }

    /// The legend and the points of each series.
    async fn series(&self, panel: &Value) -> Vec<(String, Vec<(f64, f64)>)> {
        let mut all = Vec::new();
        for target in panel["targets"].as_array().unwrap() {
            let query = with_variables(target["expr"].as_str().unwrap());
            for series in self.prometheus.series(&query, self.between.start, self.between.end).await {
                let labels = series["metric"].as_object().unwrap();
                let mut legend = target["legendFormat"].as_str().unwrap_or_default().to_owned();
                for (label, value) in labels {
                    legend = legend.replace(&format!("{{{{{label}}}}}"), value.as_str().unwrap());
                }
                if panel["type"] == "table" {
                    let shown = labels.iter().filter(|(label, _)| *label != "__name__");
                    legend = shown
                        .map(|(label, value)| format!("{label} {}", value.as_str().unwrap()))
                        .collect::<Vec<_>>()
                        .join("   ");
                }
                let points =
                    series["values"].as_array().unwrap().iter().map(|point| {
                        (point[0].as_f64().unwrap(), point[1].as_str().unwrap().parse().unwrap())
                    });
                all.push((legend, points.filter(|(_, value): &(f64, f64)| value.is_finite()).collect()));
            }
        }
        all
    }

    fn text(&mut self, x: f64, y: f64, colour: &str, more: &str, text: &str) {
        let mut text = text.replace('&', "&amp;").replace('<', "&lt;");
        for (name, shown) in &self.shown {
            text = text.replace(name, shown);
        }
        _ = writeln!(self.svg, "<text x=\"{x:.0}\" y=\"{y:.0}\" fill=\"{colour}\" {more}>{text}</text>");
    }

    fn stat(&mut self, x: f64, y: f64, unit: &str, series: &[(String, Vec<(f64, f64)>)]) {
        let shown = series.iter().map(|(legend, points)| {
            let last = points.last().map_or("-".to_owned(), |(_, value)| with_unit(*value, unit));
            format!("{legend} {last}").trim().to_owned()
        });
        let shown = shown.collect::<Vec<_>>().join("  ");
        let size = if series.len() > 1 { 18 } else { 30 };
        self.text(x, y, COLOURS[0], &format!("font-size=\"{size}\""), &shown);
    }

    fn table(&mut self, x: f64, y: f64, series: &[(String, Vec<(f64, f64)>)]) {
        for (row, (legend, _)) in series.iter().enumerate() {
            self.text(x, y + 16.0 * row as f64, "#ccccdc", "", legend);
        }
    }

    fn lines(&mut self, [x, y, w, h]: [f64; 4], unit: &str, series: &[(String, Vec<(f64, f64)>)]) {
        let most = series.iter().flat_map(|(_, points)| points).map(|(_, value)| *value).fold(0.0, f64::max);
        self.text(x, y + 4.0, "#8e8e9a", "", &with_unit(most, unit));
        _ = writeln!(self.svg, "<path d=\"M{x} {:.0}h{w}\" stroke=\"#2c3235\"/>", y + h);
        let mut legend_x = x;
        for (number, (legend, points)) in series.iter().enumerate() {
            let colour = COLOURS[number % COLOURS.len()];
            let length = self.between.end - self.between.start;
            let place = |(at, value): &(f64, f64)| {
                let share = if most > 0.0 { value / most } else { 0.0 };
                format!(
                    "{:.0},{:.0}",
                    x + (at - self.between.start) / length * w,
                    y + h - share.max(0.0) * (h - 8.0)
                )
            };
            let points: Vec<String> = points.iter().map(place).collect();
            _ = writeln!(
                self.svg,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\"/>",
                points.join(" ")
            );
            if number < LEGENDS_MAX {
                self.text(legend_x, y + h + 16.0, colour, "", legend);
                legend_x += 30.0 + 5.0 * legend.chars().count() as f64;
            }
        }
    }
}

/// A value with its unit.
fn with_unit(value: f64, unit: &str) -> String {
    let scale = |value: f64, steps: &[(f64, &str)]| {
        let (factor, end) = steps.iter().find(|(factor, _)| value >= *factor).unwrap_or(&(1.0, ""));
        format!("{:.3}", value / factor).trim_end_matches('0').trim_end_matches('.').to_owned() + end
    };
    match unit {
        "s" if value < 1.0 => format!("{:.1} ms", value * 1e3),
        "s" => format!("{value:.1} s"),
        "percentunit" => format!("{:.0} %", value * 100.0),
        "bytes" | "Bps" => {
            scale(value, &[(1e9, " GB"), (1e6, " MB"), (1e3, " kB")]) + if unit == "Bps" { "/s" } else { "" }
        }
        "ops" => scale(value, &[(1e6, " M"), (1e3, " k")]) + "/s",
        _ => scale(value, &[(1e6, " M"), (1e3, " k")]),
    }
}
