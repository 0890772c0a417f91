//! What a metric is, and [`metrics!`](crate::metrics!): one line of it defines the field of a metric, its registration, its
//! name, help and labels, and its row in `docs/metrics.md`.
//!
//! Conventions: seconds and bytes as base units, and `_total` at the end of counters. Every label has few values: the number
//! of values from outside, such as topics, is limited by [`Named`].

use crate::health::stats::lock;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::{counter, gauge};
use prometheus_client::registry::{Metric as Collected, Unit};
use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;

pub use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
pub use prometheus_client::registry::Registry;

pub type Counter = counter::Counter;
pub type FloatCounter = counter::Counter<f64, AtomicU64>;
pub type Gauge = gauge::Gauge;
pub type FloatGauge = gauge::Gauge<f64, AtomicU64>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    /// With `_total` for a counter. The samples of a histogram append `_bucket`, `_sum` and `_count`.
    pub name: &'static str,
    pub kind: MetricKind,
    pub labels: &'static [&'static str],
    pub answers: Question,
    pub help: &'static str,
    /// What a bad value looks like; empty if no value is bad.
    pub bad: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// Increases until the process restarts.
    Counter,
    Gauge,
    Histogram,
    /// Always 1; the labels carry the information.
    Info,
}

/// An operator's question, in the order in which they are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// Does it run, and is it late?
    Late,
    /// How fast is it?
    Fast,
    /// What failed?
    Failed,
    /// What does it cost?
    Costs,
}

impl Metric {
    /// The name without the suffix of its kind.
    pub fn family(&self) -> &'static str {
        match self.kind {
            MetricKind::Counter => self.name.trim_end_matches("_total"),
            MetricKind::Info => self.name.trim_end_matches("_info"),
            MetricKind::Gauge | MetricKind::Histogram => self.name,
        }
    }

    pub fn samples(&self) -> Vec<String> {
        match self.kind {
            MetricKind::Histogram => {
                ["_bucket", "_sum", "_count"].map(|end| format!("{}{end}", self.name)).into()
            }
            _ => vec![self.name.to_owned()],
        }
    }

    /// The base unit at the end of its name, if it has one.
    pub fn unit(&self) -> Option<&'static str> {
        ["seconds", "bytes"].into_iter().find(|unit| self.family().ends_with(&format!("_{unit}")))
    }

    /// Removes the unit from the name, because the encoder appends it, as well as `_total` and `_info`.
    pub fn register(&self, registry: &mut Registry, collected: impl Collected) {
        let name = self.family();
        let unit = match self.unit() {
            Some("seconds") => Unit::Seconds,
            Some("bytes") => Unit::Bytes,
            _ => return registry.register(name, self.help, collected),
        };
        let name = name.trim_end_matches(unit.as_str()).trim_end_matches('_');
        registry.register_with_unit(name, self.help, unit, collected);
    }
}

/// A metric with labels. The macro sets their names, so callers pass only their values.
#[derive(Debug)]
pub struct PerLabel<M> {
    names: &'static [&'static str],
    family: Family<Vec<(&'static str, String)>, M>,
}

impl<M: Clone + Default> PerLabel<M> {
    pub fn new(names: &'static [&'static str]) -> PerLabel<M> {
        PerLabel { names, family: Family::default() }
    }

    /// The metric with these values of its labels.
    pub fn at<const N: usize>(&self, values: [&str; N]) -> M {
        let labels: Vec<_> = self.names.iter().copied().zip(values.map(str::to_owned)).collect();
        self.family.get_or_create_owned(&labels)
    }

    pub fn clear(&self) {
        self.family.clear();
    }

    pub fn collected(&self) -> Family<Vec<(&'static str, String)>, M> {
        self.family.clone()
    }
}

/// The values of a label that comes from outside. Only the first few are named; the others are counted together.
pub struct Named {
    most: usize,
    names: Mutex<HashSet<String>>,
}

impl Named {
    /// The value for all values that are not named.
    const OTHER: &str = "other";

    pub(crate) fn new(most: usize) -> Named {
        Named { most, names: Mutex::default() }
    }

    /// This value, or "other" if there are too many. A named value stays named, so its counters continue.
    pub fn value<'a>(&self, value: &'a str) -> &'a str {
        let mut names = lock(&self.names);
        let is_named = names.contains(value) || (names.len() < self.most && names.insert(value.to_owned()));
        if is_named { value } else { Named::OTHER }
    }
}

/// Defines a struct of metrics with `METRICS`, `zero` and `register`. A line is `field: Kind "name" [labels], help, bad;`, and
/// a histogram has the first bucket, the factor and the number of buckets after its kind. `and` adds fields that are not
/// metrics; their values may use the metrics by name.
#[macro_export]
macro_rules! metrics {
    (
        $(#[$about:meta])* $vis:vis struct $struct:ident {
            $($question:ident {
                $($field:ident: $kind:ident $(($($bucket:literal),+))? $name:literal [$($label:literal)*], $help:literal, $bad:literal;)*
            })*
        }
        $(and { $($(#[$doc:meta])* $other_vis:vis $other:ident: $type:ty = $value:expr;)* })?
    ) => {
        $(#[$about])*
        $vis struct $struct {
            $($(#[doc = $help] pub $field: $crate::metrics!(@type $kind $($label)*),)*)*
            $($($(#[$doc])* $other_vis $other: $type,)*)?
        }

        impl $struct {
            /// What the metrics mean, in the order in which they are shown.
            pub const METRICS: &[$crate::health::metrics::Metric] =
                &[$($($crate::metrics!(@metric $question $kind $name [$($label)*] $help $bad)),*),*];

            fn zero() -> $struct {
                $($(let $field = $crate::metrics!(@zero $kind [$($label)*] $($($bucket),+)?);)*)*
                $struct { $($($other: $value,)*)? $($($field,)*)* }
            }

            pub fn register(&self, registry: &mut $crate::health::metrics::Registry) {
                $($(
                    let metric = $crate::metrics!(@metric $question $kind $name [$($label)*] $help $bad);
                    metric.register(registry, $crate::metrics!(@collected self.$field; $($label)*));
                )*)*
            }
        }
    };
    (@type $kind:ident) => { $crate::health::metrics::$kind };
    (@type $kind:ident $($label:literal)+) => { $crate::health::metrics::PerLabel<$crate::health::metrics::$kind> };
    (@zero Histogram [] $first:literal, $factor:literal, $count:literal) => {{
        use $crate::health::metrics::{Histogram, exponential_buckets};
        Histogram::new(exponential_buckets($first, $factor, $count))
    }};
    (@zero $kind:ident []) => { $crate::health::metrics::$kind::default() };
    (@zero $kind:ident [$($label:literal)+]) => { $crate::health::metrics::PerLabel::new(&[$($label),+]) };
    (@collected $metric:expr;) => { $metric.clone() };
    (@collected $metric:expr; $($label:literal)+) => { $metric.collected() };
    (@metric $question:ident $kind:ident $name:literal [$($label:literal)*] $help:literal $bad:literal) => {
        $crate::health::metrics::Metric {
            name: $name,
            kind: $crate::metrics!(@kind $kind),
            labels: &[$($label),*],
            answers: $crate::health::metrics::Question::$question,
            help: $help,
            bad: $bad,
        }
    };
    (@kind FloatCounter) => { $crate::health::metrics::MetricKind::Counter };
    (@kind FloatGauge) => { $crate::health::metrics::MetricKind::Gauge };
    (@kind $kind:ident) => { $crate::health::metrics::MetricKind::$kind };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_beyond_the_limit_are_counted_together() {
        let named = Named::new(2);
        let values = ["a", "b", "c", "a"].map(|value| named.value(value));
        assert_eq!(values, ["a", "b", Named::OTHER, "a"]);
    }
}
