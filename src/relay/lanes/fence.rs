//! The fence: an id up to which no transaction can commit new rows.
//!
//! A writer takes RowExclusiveLock on the outbox before it draws an id, and keeps it until its transaction ends. Note H, then
//! list the holders of the lock. Once every transaction of that list has ended, no new row with an id <= H can appear.

use std::collections::HashSet;

/// One fence at a time. It begins with a list of the lock's holders and passes when all of them have ended.
pub struct Fence {
    passed: i64,
    high: i64,
    pending: HashSet<String>,
}

impl Fence {
    pub(crate) fn new() -> Fence {
        Fence { passed: i64::MIN, high: i64::MIN, pending: HashSet::new() }
    }

    /// No transaction can commit new rows up to this id.
    pub(crate) fn passed(&self) -> i64 {
        self.passed
    }

    /// Whether a transaction of the list is still open.
    pub(crate) fn is_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Begins a fence with the holders of the lock. They must be listed after `high` was noted.
    pub fn begin(&mut self, high: i64, holders: impl IntoIterator<Item = String>) {
        self.high = high;
        self.pending = holders.into_iter().collect();
        self.pass_if_clear();
    }

    /// Updates the list with the current holders.
    ///
    /// PREPARE TRANSACTION gives a transaction another `virtualtransaction`, "-1/xid". While a session of the list may have
    /// been prepared, every prepared holder counts as one of the list.
    pub(crate) fn update(&mut self, holders: impl IntoIterator<Item = String>) {
        let sessions_left = self.pending.iter().any(|holder| !is_prepared(holder));
        let now: HashSet<String> = holders.into_iter().collect();
        self.pending.retain(|holder| now.contains(holder));
        if sessions_left {
            self.pending.extend(now.into_iter().filter(|holder| is_prepared(holder)));
        }
        self.pass_if_clear();
    }

    fn pass_if_clear(&mut self) {
        if self.pending.is_empty() {
            self.passed = self.passed.max(self.high);
        }
    }
}

fn is_prepared(holder: &str) -> bool {
    holder.starts_with("-1/")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holders<const N: usize>(names: [&str; N]) -> impl Iterator<Item = String> {
        names.map(str::to_owned).into_iter()
    }

    #[test]
    fn it_passes_when_every_holder_of_the_list_has_ended_despite_later_ones() {
        let mut fence = Fence::new();
        fence.begin(10, holders(["3/7", "4/9"]));
        assert_eq!(fence.passed(), i64::MIN);
        fence.update(holders(["4/9", "5/1"]));
        assert_eq!(fence.passed(), i64::MIN);
        fence.update(holders(["5/1", "4/10"]));
        assert_eq!(fence.passed(), 10);
    }

    #[test]
    fn it_passes_at_once_without_holders() {
        let mut fence = Fence::new();
        fence.begin(10, holders([]));
        assert_eq!(fence.passed(), 10);
    }

    #[test]
    fn a_holder_that_was_prepared_in_between_has_not_ended() {
        let mut fence = Fence::new();
        fence.begin(10, holders(["3/7"]));
        fence.update(holders(["-1/800"]));
        assert_eq!(fence.passed(), i64::MIN);
        fence.update(holders(["-1/800", "-1/801"]));
        assert_eq!(fence.passed(), i64::MIN);
        fence.update(holders(["-1/801"]));
        assert_eq!(fence.passed(), 10, "801 was prepared when no session of the list was left");
    }
}
