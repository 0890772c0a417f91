//! Line charts over time as SVG: panels below each other with the same time axis.

use super::chart::escape;
use std::fmt::Write;

const WIDTH: f64 = 760.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 120.0;
const TOP: f64 = 44.0;
const PANEL: f64 = 150.0;
/// The space of a panel above its lines, for the title, and below them.
const PANEL_TOP: f64 = 26.0;
const PANEL_BOTTOM: f64 = 14.0;
const AXIS: f64 = 34.0;
const COLORS: [&str; 2] = ["#1a7f64", "#8250df"];
const TICKS_OF_TIME: u32 = 6;

/// The chart.
pub struct Lines {
    pub title: String,
    pub unit_of_time: String,
    pub panels: Vec<Panel>,
}

/// Lines with the same unit. The values begin at 0.
pub struct Panel {
    /// Contains the unit.
    pub title: String,
    pub lines: Vec<Line>,
}

pub struct Line {
    pub label: String,
    /// Time and value.
    pub points: Vec<(f64, f64)>,
}

impl Lines {
    /// The SVG file. It has its own background, because it may be shown on a dark page.
    pub fn svg(&self) -> String {
        let height = TOP + PANEL * self.panels.len() as f64 + AXIS;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
             font-family=\"system-ui, sans-serif\" font-size=\"13\" fill=\"#1f2328\">\n\
             <title>{title}</title>\n\
             <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#ffffff\"/>\n\
             <text x=\"12\" y=\"26\" font-size=\"15\" font-weight=\"600\">{title}</text>\n",
            title = escape(&self.title),
        );
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
            let unit = if tick == TICKS_OF_TIME {
                format!(" {}", escape(&self.unit_of_time))
            } else {
                String::new()
            };
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
            escape(&self.title)
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

    #[test]
    fn the_axis_ends_at_a_round_number_above_the_highest_value() {
        let rounded = [0.0, 0.9, 1.0, 3.1, 9.5, 10.0, 45.0, 201.0].map(round_up);
        assert_eq!(rounded, [1.0, 1.0, 1.0, 4.0, 10.0, 10.0, 60.0, 400.0]);
    }

    #[test]
    fn lines_are_drawn_over_the_whole_time_and_from_zero() {
        let line = Line { label: "p99 < 10".into(), points: vec![(0.0, 0.0), (30.0, 2.0), (60.0, 4.0)] };
        let panel = Panel { title: "Latency".into(), lines: vec![line] };
        let svg = Lines { title: "Hour".into(), unit_of_time: "minutes".into(), panels: vec![panel] }.svg();
        // The time from left to right, and the value from the bottom to the top of the panel.
        assert!(svg.contains("points=\"64.0,180.0 352.0,125.0 640.0,70.0\""), "{svg}");
        assert!(svg.contains(">60 minutes</text>") && svg.contains("p99 &lt; 10"), "{svg}");
    }
}
