use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// What a retry costs, and a call earns a tenth of.
const RETRY: u32 = 10;

/// How many retries all calls to one place may make together: one for each ten calls, and some at once. Clones share it.
///
/// While everything works, retries are rare and the budget is full. When nothing works, retrying adds a tenth to the load
/// instead of multiplying it.
#[derive(Debug, Clone)]
pub struct Budget(Arc<Account>);

#[derive(Debug)]
struct Account {
    balance: AtomicU32,
    most: u32,
}

impl Budget {
    /// A full budget with this many retries at once.
    pub fn new(at_once: u16) -> Budget {
        let most = u32::from(at_once) * RETRY;
        Budget(Arc::new(Account { balance: AtomicU32::new(most), most }))
    }

    pub(super) fn earn(&self) {
        let Account { balance, most } = &*self.0;
        // Whoever finds it full leaves it so.
        let _ = balance
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |now| (now < *most).then_some(now + 1));
    }

    /// Whether there was enough for a retry.
    pub(super) fn spend(&self) -> bool {
        let balance = &self.0.balance;
        balance.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |now| now.checked_sub(RETRY)).is_ok()
    }
}
