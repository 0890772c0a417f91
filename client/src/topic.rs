//! The topic of an event: the template, and Kafka's rules for topic names.
//!
//! The relay uses this module too, so that names are checked in the same way when an event is enqueued and when it is
//! published.
//!
//! ```
//! use pg_outbox::topic::{TopicTemplate, check_topic};
//!
//! let template = TopicTemplate::parse("events.{aggregate_type}")?;
//! assert_eq!(check_topic(&template.topic("order", "OrderPaid")), Ok(()));
//! # Ok::<(), pg_outbox::topic::TemplateError>(())
//! ```

mod name;
mod template;

pub use name::{TOPIC_LENGTH_MAX, TopicError, check_topic};
pub use template::{TemplateError, TopicPart, TopicTemplate};
