//! The topic of an event: the template, and Kafka's rules for topic names.
//!
//! The relay uses this module too, so that names are checked in the same way when an event is enqueued and when it is
//! published.

mod name;
mod template;

pub use name::{TOPIC_LENGTH_MAX, TopicError, check_topic};
pub use template::{TemplateError, TopicPart, TopicTemplate};
