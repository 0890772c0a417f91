//! Labels whose values come from outside: only so many of them are named, the others count together.

use prometheus_client::metrics::family::Family;
use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

/// The value of a label that stands for all that are not named.
pub(crate) const OTHER: &str = "other";

/// One label, and how many values of it are named.
pub struct Named {
    label: &'static str,
    most: usize,
    names: Mutex<HashSet<String>>,
}

/// A label with its value.
pub(crate) type Label = Vec<(&'static str, String)>;

/// One metric for each value of a label.
pub(crate) type PerLabel<M> = Family<Label, M>;

impl Named {
    /// The first `most` values are named.
    pub(crate) fn new(label: &'static str, most: usize) -> Named {
        Named { label, most, names: Mutex::default() }
    }

    /// The label for this value, or for [`OTHER`] if it is one too many. A value that was named once stays so: its
    /// counters go on.
    pub(crate) fn label(&self, value: &str) -> Label {
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        let is_named = names.contains(value) || (names.len() < self.most && names.insert(value.to_owned()));
        vec![(self.label, if is_named { value } else { OTHER }.to_owned())]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_too_many_is_counted_with_the_others() {
        let named = Named::new("topic", 2);
        let value = |value| named.label(value)[0].1.clone();
        assert_eq!([value("a"), value("b"), value("c"), value("a")], ["a", "b", OTHER, "a"]);
    }
}
