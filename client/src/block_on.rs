use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

/// Runs a call of this crate on this thread, for applications with a synchronous driver.
///
/// The calls of this crate are futures. With a synchronous driver, they block the thread until PostgreSQL has answered, and
/// are then complete. So this function needs no runtime.
///
/// ```
/// assert_eq!(pg_outbox::block_on(async { 42 }), 42); // with postgres: block_on(pg_outbox::enqueue(&mut tx, event))?
/// ```
///
/// Do not call it in asynchronous code, because it blocks the thread.
pub fn block_on<T>(call: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut call = pin!(call);
    loop {
        match call.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[test]
    fn a_future_that_is_ready_returns_at_once() {
        assert_eq!(block_on(async { 42 }), 42);
    }

    /// The first poll starts a thread that completes the future.
    #[test]
    fn a_future_that_waits_is_polled_again_when_it_is_woken() {
        let shared = Arc::new(Mutex::new(None));
        let mut completing = None;
        let answer = block_on(std::future::poll_fn(|context| {
            if let Some(answer) = *shared.lock().unwrap() {
                return Poll::Ready(answer);
            }
            completing.get_or_insert_with(|| {
                let (shared, waker) = (Arc::clone(&shared), context.waker().clone());
                thread::spawn(move || {
                    *shared.lock().unwrap() = Some(42);
                    waker.wake();
                })
            });
            Poll::Pending
        }));
        assert_eq!(answer, 42);
        completing.unwrap().join().unwrap();
    }
}
