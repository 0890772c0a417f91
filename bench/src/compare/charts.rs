//! The charts as SVG, and the figures that they show: horizontal bars, and lines over time.

use super::results::{Of, Outcome, Results, Unit};
use super::scenarios::{Check, SCENARIOS, Target};
use super::soak::{DEAD, INDEXES, MEMORY, P50, P99, TABLE};
use std::fmt::Write;

const WIDTH: f64 = 760.0;
const TOP: f64 = 44.0;
const TEXT_COLOR: &str = " fill=\"#1f2328\"";

const LABELS: f64 = 300.0;
const VALUES: f64 = 110.0;
const ROW: f64 = 30.0;
const THICK: f64 = 18.0;

const LEFT: f64 = 64.0;
const RIGHT: f64 = 120.0;
const PANEL: f64 = 150.0;
/// The space of a panel above its lines, for the title, and below them.
const PANEL_TOP: f64 = 26.0;
const PANEL_BOTTOM: f64 = 14.0;
const AXIS: f64 = 34.0;
const COLORS: [&str; 2] = ["#1a7f64", "#8250df"];
const TICKS_OF_TIME: u32 = 6;

/// The charts whose parts have results, with their file names.
pub fn charts(results: &Results) -> Vec<(&'static str, Chart)> {
    let charts =
        [("drain.svg", drain(results)), ("latency.svg", latency(results)), (SHARES_FILE, shares(results))];
    charts.into_iter().filter(|(_, chart)| !chart.rows.is_empty()).collect()
}

/// A row with the median of each of these figures that has been measured.
fn rows(results: &Results, part: &str, unit: Unit, figures: &[(&str, &str)]) -> Vec<Row> {
    let Some(part) = results.parts.get(part) else { return Vec::new() };
    let row = |(label, figure): &(&str, &str)| {
        let value = part.figures.pick(figure, Of::Median)?;
        let ours = !label.starts_with("Debezium");
        Some(Row { label: (*label).to_owned(), value, text: unit.show(value), target: None, ours })
    };
    figures.iter().filter_map(row).collect()
}

fn drain(results: &Results) -> Chart {
    let figures = [
        ("outbox-relay, rows deleted", "delete: rate"),
        ("outbox-relay, rows marked", "mark: rate"),
        ("Debezium, tuned", "Debezium: rate"),
    ];
    let title = "Drain of a backlog, rows per second";
    Chart { title, rows: rows(results, "drain", Unit::RowsPerSecond, &figures) }
}

fn latency(results: &Results) -> Chart {
    let figures = [
        ("outbox-relay, p50", "1,000 rows/s, relay: p50"),
        ("Debezium, p50", "1,000 rows/s, Debezium: p50"),
        ("outbox-relay, p99", "1,000 rows/s, relay: p99"),
        ("Debezium, p99", "1,000 rows/s, Debezium: p99"),
        ("outbox-relay, p99.9", "1,000 rows/s, relay: p99.9"),
        ("Debezium, p99.9", "1,000 rows/s, Debezium: p99.9"),
    ];
    let title = "Latency from commit to consumer at 1,000 rows/s, in milliseconds";
    Chart { title, rows: rows(results, "steady", Unit::Milliseconds, &figures) }
}

pub const SOAK_TITLE: &str = "One hour at 1,000 rows/s";

/// The file of the chart of shares. It shows targets, so it belongs to the page of the targets.
pub const SHARES_FILE: &str = "shares.svg";

/// The checks whose target is a share of the undisturbed rate: the number of the scenario, the name of the check, and the
/// label in the chart.
const SHARES: [(usize, &str, &str); 9] = [
    (7, "rate, relative to no held snapshot", "a snapshot is held open"),
    (9, "rate of the others, relative to no held topic", "rows of a held topic come first"),
    (10, "rate, relative to no retained rows", "10,000,000 sent rows retained"),
    (11, "rate, relative to no writers", "writers are active"),
    (12, "rate of 2 relays, relative to 1", "two relays"),
    (12, "rate of 4 relays, relative to 1", "four relays"),
    (13, "1,000 topics", "1,000 topics"),
    (13, "10,000,000 keys", "10,000,000 keys"),
    (13, "payload of 10 B", "payloads of 10 B"),
];

fn shares(results: &Results) -> Chart {
    let row = |(number, name, label): &(usize, &str, &str)| {
        let (check, part) = check(*number, name)?;
        let value = check.value(&results.parts.get(part)?.figures, Of::Median)?;
        let target = if let Target::AtLeast(least) = check.target { least } else { 100.0 };
        let text = check.unit.show(value);
        Some(Row { label: (*label).to_owned(), value, text, target: Some(target), ours: true })
    };
    let title =
        "Rate under adverse conditions, in percent of the undisturbed rate; the red line is the target";
    Chart { title, rows: SHARES.iter().filter_map(row).collect() }
}

/// A check, and the part that measures it.
fn check(number: usize, name: &str) -> Option<(&'static Check, &'static str)> {
    let scenario = &SCENARIOS[number - 1];
    let check = scenario.checks.iter().find(|check| check.name == name)?;
    Some((check, scenario.part_of(check)))
}

pub fn soak(results: &Results) -> Option<Lines> {
    let part = results.parts.get("soak")?;
    let panels = [
        ("Latency in milliseconds", &[P50, P99][..]),
        ("Table and indexes in MiB", &[TABLE, INDEXES]),
        ("Dead rows in thousands", &[DEAD]),
        ("Memory of the relay in MiB", &[MEMORY]),
    ];
    let lines = |names: &[&str]| names.iter().map(|name| line(part, name)).collect();
    let panels = panels.map(|(title, names)| Panel { title, lines: lines(names) });
    Some(Lines { title: SOAK_TITLE, unit_of_time: "minutes", panels: panels.into() })
}

fn line(part: &Outcome, name: &str) -> Line {
    let points = part.series.get(name).cloned().unwrap_or_default();
    let scale = if name == DEAD { 1e-3 } else { 1.0 };
    Line {
        label: name.to_owned(),
        points: points.into_iter().map(|(at, value)| (at, value * scale)).collect(),
    }
}

/// The beginning of a file. It has its own background, because it may be shown on a dark page.
fn head(title: &str, height: f64, [root, text]: [&str; 2]) -> String {
    let title = escape(title);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
         font-family=\"system-ui, sans-serif\" font-size=\"13\"{root}>\n\
         <title>{title}</title>\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#ffffff\"/>\n\
         <text x=\"12\" y=\"26\" font-size=\"15\" font-weight=\"600\"{text}>{title}</text>\n"
    )
}

pub struct Row {
    pub label: String,
    pub value: f64,
    /// The value as it is written next to the bar.
    pub text: String,
    /// A marker on the bar: the target to reach or not to exceed.
    pub target: Option<f64>,
    /// Whether it shows the relay and not what the relay is compared with.
    pub ours: bool,
}

/// A chart: a title, which contains the unit, and the bars.
pub struct Chart {
    pub title: &'static str,
    pub rows: Vec<Row>,
}

impl Chart {
    pub fn svg(&self) -> String {
        let height = TOP + ROW * self.rows.len() as f64 + 12.0;
        let most =
            self.rows.iter().flat_map(|row| [row.value, row.target.unwrap_or(0.0)]).fold(0.0, f64::max);
        let scale = if most > 0.0 { (WIDTH - LABELS - VALUES) / most } else { 0.0 };
        let mut svg = head(self.title, height, ["", TEXT_COLOR]);
        for (at, row) in self.rows.iter().enumerate() {
            row.draw(&mut svg, TOP + ROW * at as f64, scale);
        }
        svg + "</svg>\n"
    }
}

impl Row {
    fn draw(&self, svg: &mut String, top: f64, scale: f64) {
        let middle = top + ROW / 2.0;
        let baseline = middle + 4.5;
        let bar_top = middle - THICK / 2.0;
        let width = self.value * scale;
        let fill = if self.ours { "#1a7f64" } else { "#8c959f" };
        let behind = LABELS + self.target.map_or(width, |target| width.max(target * scale)) + 8.0;
        let (label, text) = (escape(&self.label), escape(&self.text));
        // Writing to a string cannot fail.
        _ = writeln!(
            svg,
            "<text x=\"{x:.1}\" y=\"{baseline:.1}\" text-anchor=\"end\" fill=\"#1f2328\">{label}</text>\n\
             <rect x=\"{LABELS}\" y=\"{bar_top:.1}\" width=\"{width:.1}\" height=\"{THICK}\" rx=\"2\" fill=\"{fill}\"/>\n\
             <text x=\"{behind:.1}\" y=\"{baseline:.1}\" fill=\"#1f2328\">{text}</text>",
            x = LABELS - 10.0,
        );
        if let Some(target) = self.target {
            let x = LABELS + target * scale;
            _ = writeln!(
                svg,
                "<line x1=\"{x:.1}\" y1=\"{:.1}\" x2=\"{x:.1}\" y2=\"{:.1}\" stroke=\"#cf222e\" stroke-width=\"2\"/>",
                bar_top - 3.0,
                bar_top + THICK + 3.0,
            );
        }
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

pub struct Lines {
    pub title: &'static str,
    pub unit_of_time: &'static str,
    pub panels: Vec<Panel>,
}

/// Lines with the same unit. The values begin at 0.
pub struct Panel {
    pub title: &'static str,
    pub lines: Vec<Line>,
}

pub struct Line {
    pub label: String,
    /// Time and value.
    pub points: Vec<(f64, f64)>,
}

impl Lines {
    pub fn svg(&self) -> String {
        let height = TOP + PANEL * self.panels.len() as f64 + AXIS;
        let mut svg = head(self.title, height, [TEXT_COLOR, ""]);
        let points = self.panels.iter().flat_map(|panel| &panel.lines).flat_map(|line| &line.points);
        let end = points.map(|(at, _)| *at).fold(0.0, f64::max);
        for (number, panel) in self.panels.iter().enumerate() {
            panel.draw(&mut svg, TOP + PANEL * number as f64, end);
        }
        self.draw_time(&mut svg, height - AXIS, end);
        svg + "</svg>\n"
    }

    fn draw_time(&self, svg: &mut String, top: f64, end: f64) {
        for tick in 0..=TICKS_OF_TIME {
            let at = end * f64::from(tick) / f64::from(TICKS_OF_TIME);
            let unit = if tick == TICKS_OF_TIME { format!(" {}", self.unit_of_time) } else { String::new() };
            // Writing to a string cannot fail.
            _ = writeln!(
                svg,
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{at:.0}{unit}</text>",
                x(at, end),
                top + 12.0
            );
        }
    }
}

impl Panel {
    fn draw(&self, svg: &mut String, top: f64, end: f64) {
        let (upper, lower) = (top + PANEL_TOP, top + PANEL - PANEL_BOTTOM);
        let values = self.lines.iter().flat_map(|line| &line.points).map(|(_, value)| *value);
        let most = round_up(values.fold(0.0, f64::max));
        _ = writeln!(
            svg,
            "<text x=\"{LEFT}\" y=\"{:.1}\" font-weight=\"600\">{}</text>",
            top + 16.0,
            escape(self.title)
        );
        for share in [0.0, 0.5, 1.0] {
            let y = lower - (lower - upper) * share;
            _ = writeln!(
                svg,
                "<line x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{:.1}\" y2=\"{y:.1}\" stroke=\"#d1d9e0\"/>\n\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                WIDTH - RIGHT,
                LEFT - 8.0,
                y + 4.5,
                most * share
            );
        }
        let y = |value: f64| lower - (lower - upper) * value / most;
        let mut labels_below = upper;
        for (line, color) in self.lines.iter().zip(COLORS) {
            let points: Vec<String> = line
                .points
                .iter()
                .map(|(at, value)| format!("{:.1},{:.1}", x(*at, end), y(*value)))
                .collect();
            _ = writeln!(
                svg,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"1.5\"/>\n\
                 <text x=\"{:.1}\" y=\"{:.1}\" fill=\"{color}\">{}</text>",
                points.join(" "),
                WIDTH - RIGHT + 8.0,
                labels_below + 4.5,
                escape(&line.label)
            );
            labels_below += 18.0;
        }
    }
}

fn x(at: f64, end: f64) -> f64 {
    if end > 0.0 { LEFT + (WIDTH - LEFT - RIGHT) * at / end } else { LEFT }
}

/// The next number of the series 1, 2, 4, 6, 8, 10, 20 and so on, so that half of it is easy to read as well.
fn round_up(value: f64) -> f64 {
    if value <= 0.0 {
        return 1.0;
    }
    let magnitude = 10_f64.powf(value.log10().floor());
    let steps = [1.0, 2.0, 4.0, 6.0, 8.0, 10.0];
    let step = steps.into_iter().find(|step| value <= step * magnitude * (1.0 + 1e-9)).unwrap_or(10.0);
    step * magnitude
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(label: &str, value: f64, target: Option<f64>) -> Row {
        Row { label: label.into(), value, text: format!("{value} rows/s"), target, ours: true }
    }

    #[test]
    fn the_longest_bar_fills_the_width_and_the_others_are_proportional() {
        let rows = vec![row("a", 100.0, None), row("b", 50.0, Some(25.0))];
        let svg = Chart { title: "rows/s", rows }.svg();
        assert!(svg.contains("width=\"350.0\""), "{svg}");
        assert!(svg.contains("width=\"175.0\""), "{svg}");
        assert!(svg.contains("x1=\"387.5\""), "the target at a quarter of the width: {svg}");
    }

    #[test]
    fn special_characters_are_escaped() {
        let svg = Chart { title: "a < b & c", rows: vec![row("<&>", 0.0, None)] }.svg();
        assert!(svg.contains("a &lt; b &amp; c") && svg.contains("&lt;&amp;&gt;"), "{svg}");
    }

    #[test]
    fn the_axis_ends_at_a_round_number_above_the_highest_value() {
        let rounded = [0.0, 0.9, 1.0, 3.1, 9.5, 10.0, 45.0, 201.0].map(round_up);
        assert_eq!(rounded, [1.0, 1.0, 1.0, 4.0, 10.0, 10.0, 60.0, 400.0]);
    }

    #[test]
    fn lines_are_drawn_over_the_whole_time_and_from_zero() {
        let line = Line { label: "p99 < 10".into(), points: vec![(0.0, 0.0), (30.0, 2.0), (60.0, 4.0)] };
        let panel = Panel { title: "Latency", lines: vec![line] };
        let svg = Lines { title: "Hour", unit_of_time: "minutes", panels: vec![panel] }.svg();
        // The time from left to right, and the value from the bottom to the top of the panel.
        assert!(svg.contains("points=\"64.0,180.0 352.0,125.0 640.0,70.0\""), "{svg}");
        assert!(svg.contains(">60 minutes</text>") && svg.contains("p99 &lt; 10"), "{svg}");
    }

    #[test]
    fn each_share_of_the_chart_is_a_check_of_its_scenario() {
        for (number, name, _) in SHARES {
            let (check, _) =
                check(number, name).unwrap_or_else(|| panic!("scenario {number} has no check {name:?}"));
            assert_eq!(check.unit, Unit::Percent, "scenario {number}: {name}");
        }
    }

    #[test]
    fn a_chart_without_results_is_left_out() {
        let mut drain = Outcome::default();
        drain.figures.push("mark: rate", Unit::RowsPerSecond, 150_000.0);
        drain.figures.push("Debezium: rate", Unit::RowsPerSecond, 75_000.0);
        let mut results = Results::default();
        results.parts.insert("drain".into(), drain);
        let charts = charts(&results);
        assert_eq!(charts.iter().map(|(file, _)| *file).collect::<Vec<_>>(), ["drain.svg"]);
        let ours: Vec<bool> = charts[0].1.rows.iter().map(|row| row.ours).collect();
        assert_eq!(ours, [true, false]);
    }

    #[test]
    fn the_chart_shows_each_series_and_is_absent_without_results() {
        let mut results = Results::default();
        assert!(soak(&results).is_none());
        let mut part = Outcome::default();
        for (name, value) in
            [(P50, 4.0), (P99, 9.0), (TABLE, 200.0), (INDEXES, 50.0), (DEAD, 7_000.0), (MEMORY, 25.0)]
        {
            part.series.insert(name.to_owned(), vec![(0.0, value), (60.0, value)]);
        }
        results.parts.insert("soak".to_owned(), part);
        let chart = soak(&results).unwrap();
        let last: Vec<f64> =
            chart.panels.iter().flat_map(|panel| &panel.lines).map(|line| line.points[1].1).collect();
        assert_eq!(last, [4.0, 9.0, 200.0, 50.0, 7.0, 25.0]);
    }
}
