use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// The cost of a retry. A call earns 1.
const RETRY: u32 = 10;

/// Limits the retries of all calls to one service: a burst, then one retry per ten calls. Clones share the budget.
///
/// Normally, retries are rare and the budget is full. During an outage, retries add a tenth to the load instead of multiplying
/// it.
///
/// ```
/// use pg_outbox::retry::{Budget, Policy};
///
/// let budget = Budget::new(10); // up to 10 retries at once
/// let policy = Policy::default().budget(budget.clone());
/// ```
#[derive(Debug, Clone)]
pub struct Budget(Arc<Account>);

#[derive(Debug)]
struct Account {
    balance: AtomicU32,
    most: u32,
}

impl Budget {
    /// A full budget with this burst of retries.
    pub fn new(burst: u16) -> Budget {
        let most = u32::from(burst) * RETRY;
        Budget(Arc::new(Account { balance: AtomicU32::new(most), most }))
    }

    pub(super) fn earn(&self) {
        let Account { balance, most } = &*self.0;
        // Fails if the budget is full.
        let _ = balance
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |now| (now < *most).then_some(now + 1));
    }

    /// Takes the cost of a retry. Returns false if the budget is used up.
    pub(super) fn spend(&self) -> bool {
        let balance = &self.0.balance;
        balance.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |now| now.checked_sub(RETRY)).is_ok()
    }
}
