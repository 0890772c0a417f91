//! A librdkafka producer and the thread that polls it.
//!
//! The library's `ThreadedProducer` polls in steps of 100 ms and spins during the last part of a millisecond of each step,
//! because librdkafka rounds timeouts down to whole milliseconds. Three idle producers cost 1.9% of a core that way. A step
//! slightly longer than a whole number of milliseconds avoids it.

use crate::publishing::context::Context;
use rdkafka::ClientConfig;
use rdkafka::config::FromClientConfigAndContext;
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::producer::BaseProducer;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// The maximum time that the thread needs to notice the end of the producer. Events are processed at once.
const STEP: Duration = Duration::from_micros(200_050);

/// A producer with its own polling thread. Dropping it waits for that thread and for librdkafka's threads, one of which may
/// be resolving a name, so on a runtime this happens on another thread.
pub(crate) struct PolledProducer {
    inner: Option<Inner>,
}

struct Inner {
    producer: Arc<BaseProducer<Context>>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl PolledProducer {
    /// Creates a producer, which connects in the background.
    ///
    /// # Errors
    ///
    /// If librdkafka refuses the properties, or a thread cannot be started.
    pub(crate) fn new(config: &ClientConfig, context: Context) -> KafkaResult<PolledProducer> {
        let producer = Arc::new(BaseProducer::from_config_and_context(config, context)?);
        let stop = Arc::new(AtomicBool::new(false));
        let (polled, stopped) = (Arc::clone(&producer), Arc::clone(&stop));
        let thread = Builder::new().name("producer polling".to_owned()).spawn(move || {
            while !stopped.load(Ordering::Acquire) {
                polled.poll(STEP);
            }
        });
        let thread = thread.map_err(|error| {
            KafkaError::ClientCreation(format!(
                "cannot start the polling thread of the Kafka producer: {error}. Check the \
                 thread limit of the host"
            ))
        })?;
        Ok(PolledProducer { inner: Some(Inner { producer, stop, thread }) })
    }

    /// The producer, for use on another thread.
    pub(crate) fn share(&self) -> Arc<BaseProducer<Context>> {
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
