//! Horizontal bar charts as SVG.

use std::fmt::Write;

const WIDTH: f64 = 760.0;
const LABELS: f64 = 300.0;
const VALUES: f64 = 110.0;
const TOP: f64 = 44.0;
const ROW: f64 = 30.0;
const THICK: f64 = 18.0;

/// A bar.
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
    pub title: String,
    pub rows: Vec<Row>,
}

impl Chart {
    /// The SVG file. It has its own background, because it may be shown on a dark page.
    pub fn svg(&self) -> String {
        let height = TOP + ROW * self.rows.len() as f64 + 12.0;
        let most =
            self.rows.iter().flat_map(|row| [row.value, row.target.unwrap_or(0.0)]).fold(0.0, f64::max);
        let scale = if most > 0.0 { (WIDTH - LABELS - VALUES) / most } else { 0.0 };
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
             font-family=\"system-ui, sans-serif\" font-size=\"13\">\n\
             <title>{title}</title>\n\
             <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#ffffff\"/>\n\
             <text x=\"12\" y=\"26\" font-size=\"15\" font-weight=\"600\" fill=\"#1f2328\">{title}</text>\n",
            title = escape(&self.title),
        );
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

pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
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
        let svg = Chart { title: "rows/s".into(), rows }.svg();
        assert!(svg.contains("width=\"350.0\""), "{svg}");
        assert!(svg.contains("width=\"175.0\""), "{svg}");
        assert!(svg.contains("x1=\"387.5\""), "the target at a quarter of the width: {svg}");
    }

    #[test]
    fn special_characters_are_escaped() {
        let svg = Chart { title: "a < b & c".into(), rows: vec![row("<&>", 0.0, None)] }.svg();
        assert!(svg.contains("a &lt; b &amp; c") && svg.contains("&lt;&amp;&gt;"), "{svg}");
    }
}
