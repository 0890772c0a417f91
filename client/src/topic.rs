//! Which topic an event goes to: the template, and Kafka's rule for topic names.
//!
//! The relay and this crate share the module, so that a name is judged in the same way when an event is
//! enqueued and when it is published.

mod name;
mod template;

pub use name::{TOPIC_LENGTH_MAX, TopicError, check_topic};
pub use template::{TemplateError, TopicTemplate};
