//! Labels with values from outside. Only the first few values are named; the others are counted together.

use prometheus_client::metrics::family::Family;
use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

/// The label value for all values that are not named.
pub(crate) const OTHER: &str = "other";

/// One label and its named values.
pub struct Named {
    label: &'static str,
    most: usize,
    names: Mutex<HashSet<String>>,
}

pub(crate) type Label = Vec<(&'static str, String)>;

pub(crate) type PerLabel<M> = Family<Label, M>;

impl Named {
    pub(crate) fn new(label: &'static str, most: usize) -> Named {
        Named { label, most, names: Mutex::default() }
    }

    /// The label for this value, or [`OTHER`] if there are too many. A named value stays named, so its counters continue.
    pub fn label(&self, value: &str) -> Label {
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        let is_named = names.contains(value) || (names.len() < self.most && names.insert(value.to_owned()));
        vec![(self.label, if is_named { value } else { OTHER }.to_owned())]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_beyond_the_limit_are_counted_together() {
        let named = Named::new("topic", 2);
        let value = |value| named.label(value)[0].1.clone();
        assert_eq!([value("a"), value("b"), value("c"), value("a")], ["a", "b", OTHER, "a"]);
    }
}
