//! A librdkafka producer and the thread that takes its events.
//!
//! The library's own `ThreadedProducer` polls in steps of 100 ms, and spends the end of each, less than a millisecond,
//! spinning: librdkafka takes whole milliseconds, and what remains is rounded down to none. Three idle producers cost
//! 1.9 % of a core that way. A step that is a little longer than whole milliseconds is over when librdkafka returns.

use super::context::Context;
use rdkafka::ClientConfig;
use rdkafka::config::FromClientConfigAndContext;
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::producer::BaseProducer;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// How long the end of a producer may take; events are taken at once.
const STEP: Duration = Duration::from_micros(200_050);

/// A producer whose events are taken by a thread of its own. Its end waits for that thread, purges the queues, and waits
/// for librdkafka's threads, one of which may be resolving a name: on a runtime it happens on another thread.
pub(super) struct PolledProducer {
    inner: Option<Inner>,
}

struct Inner {
    producer: Arc<BaseProducer<Context>>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl PolledProducer {
    /// Connects by itself, in the background.
    ///
    /// # Errors
    ///
    /// librdkafka refuses the properties, or there is no thread to be had.
    pub(super) fn new(config: &ClientConfig, context: Context) -> KafkaResult<PolledProducer> {
        let producer = Arc::new(BaseProducer::from_config_and_context(config, context)?);
        let stop = Arc::new(AtomicBool::new(false));
        let (polled, stopped) = (Arc::clone(&producer), Arc::clone(&stop));
        let thread = Builder::new().name("producer polling".to_owned()).spawn(move || {
            while !stopped.load(Ordering::Acquire) {
                polled.poll(STEP);
            }
        });
        // Whoever wants the producer says so, once.
        let thread = thread.map_err(|error| {
            KafkaError::ClientCreation(format!("cannot start its thread (thread limit reached?): {error}"))
        })?;
        Ok(PolledProducer { inner: Some(Inner { producer, stop, thread }) })
    }

    /// The producer, for work on another thread.
    pub(super) fn share(&self) -> Arc<BaseProducer<Context>> {
        Arc::clone(&self.inner().producer)
    }

    fn inner(&self) -> &Inner {
        self.inner.as_ref().unwrap_or_else(|| unreachable!("only drop takes it"))
    }
}

impl Deref for PolledProducer {
    type Target = BaseProducer<Context>;

    fn deref(&self) -> &Self::Target {
        &self.inner().producer
    }
}

impl Drop for PolledProducer {
    fn drop(&mut self) {
        let Some(Inner { producer, stop, thread }) = self.inner.take() else { return };
        stop.store(true, Ordering::Release);
        let end = move || {
            let _ = thread.join();
            drop(producer);
        };
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => _ = runtime.spawn_blocking(end),
            Err(_) => end(),
        }
    }
}
