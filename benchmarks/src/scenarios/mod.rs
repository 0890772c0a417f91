//! What `make bench` measures, and the targets for the results.
//!
//! The medians of the runs are compared with the targets, not the best runs.

mod table;

use crate::figures::{Figures, Of, Unit};

pub use self::table::scenarios;

/// What is measured, and the figures that have a target.
pub struct Scenario {
    pub number: u8,
    pub name: &'static str,
    pub checks: Vec<Check>,
}

/// Computes a check from the figures of its part. None if a figure is missing.
type Value = Box<dyn Fn(&Figures, Of) -> Option<f64>>;

/// One measurement of a scenario.
pub struct Check {
    /// The part that measures it.
    pub part: &'static str,
    pub name: &'static str,
    pub unit: Unit,
    pub target: Target,
    value: Value,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Target {
    AtLeast(f64),
    AtMost(f64),
    /// At least 100 percent. A value that is lower by at most [`NOISE_PERCENT`] counts as equal.
    AsFast,
    /// No target: the figure is only reported.
    Stated,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Met,
    /// Below [`Target::AsFast`], but within the noise.
    Equal,
    Missed,
    Stated,
}

/// How much two runs of the same program differ, in percent.
pub const NOISE_PERCENT: f64 = 5.0;

impl Check {
    /// The value that is compared with the target, from the medians of the runs. None if the part has not measured it.
    pub fn value(&self, figures: &Figures) -> Option<f64> {
        (self.value)(figures, Of::Median)
    }

    /// The value from the best runs.
    pub fn best(&self, figures: &Figures) -> Option<f64> {
        (self.value)(figures, Of::Best)
    }

    pub fn judge(&self, value: f64) -> Verdict {
        let met = match self.target {
            Target::Stated => return Verdict::Stated,
            Target::AsFast if (100.0 - NOISE_PERCENT..100.0).contains(&value) => return Verdict::Equal,
            Target::AsFast => value >= 100.0,
            Target::AtLeast(least) => value >= least,
            Target::AtMost(most) => value <= most,
        };
        if met { Verdict::Met } else { Verdict::Missed }
    }
}

/// A check of one figure.
fn median(part: &'static str, name: &'static str, unit: Unit, target: Target, figure: &'static str) -> Check {
    Check { part, name, unit, target, value: Box::new(move |figures, of| figures.pick(figure, of)) }
}

/// A check of the ratio of two figures, as a factor or as a percentage.
fn ratio(
    part: &'static str,
    name: &'static str,
    unit: Unit,
    target: Target,
    [figure, of]: [&'static str; 2],
) -> Check {
    let scale = if unit == Unit::Percent { 100.0 } else { 1.0 };
    let value =
        move |figures: &Figures, pick| Some(figures.pick(figure, pick)? / figures.pick(of, pick)? * scale);
    Check { part, name, unit, target, value: Box::new(value) }
}

/// A check of the CPU time per row that one figure has in addition to another.
fn difference(
    part: &'static str,
    name: &'static str,
    target: Target,
    [figure, less]: [&'static str; 2],
) -> Check {
    let value = move |figures: &Figures, pick| Some(figures.pick(figure, pick)? - figures.pick(less, pick)?);
    Check { part, name, unit: Unit::MicrosecondsPerRow, target, value: Box::new(value) }
}

/// A check of the higher of two ratios, because small rows are limited by their number and large rows by their bytes.
fn shape(name: &'static str, rows: &'static str, bytes: &'static str) -> Check {
    let value = move |figures: &Figures, of| {
        let by_rows = figures.pick(rows, of)? / figures.pick("reference: rate", of)?;
        let by_bytes = figures.pick(bytes, of)? / figures.pick("reference: bytes", of)?;
        Some(by_rows.max(by_bytes) * 100.0)
    };
    let (unit, target) = (Unit::Percent, Target::AtLeast(70.0));
    Check { part: "shapes", name, unit, target, value: Box::new(value) }
}

#[cfg(test)]
mod tests;
