//! The topics that are verified, and their partitions.

use super::read_error;
use crate::cli::exit::Failed;
use kafka::operate::reader::TopicReader;
use pg_outbox::topic::check_topic;
use std::collections::HashMap;
use std::sync::Arc;

/// A cluster has far fewer topics. A wrong template could name any number.
const TOPICS_MAX: usize = 10_000;

/// A topic, and the number of its partitions; 0 if it does not exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FoundTopic {
    pub name: String,
    pub partitions: u32,
}

pub(super) struct Topics {
    reader: Arc<TopicReader>,
    found: Vec<FoundTopic>,
    places: HashMap<String, u32>,
    /// Whether only the topics of the command line are verified.
    is_fixed: bool,
}

impl Topics {
    /// These topics, or those of the events if the list is empty.
    pub(super) async fn new(reader: Arc<TopicReader>, only: &[String]) -> Result<Topics, Failed> {
        let mut topics = Topics { reader, found: Vec::new(), places: HashMap::new(), is_fixed: false };
        for name in only {
            if let Err(error) = check_topic(name) {
                return Err(Failed::Usage(format!("--topic {}: {error}.", name.escape_debug())));
            }
            let place = topics.place(name).await?;
            if place.is_some_and(|place| topics.found[place as usize].partitions == 0) {
                return Err(Failed::Usage(format!(
                    "Topic {} does not exist, or the Kafka user may not describe it.",
                    name.escape_debug()
                )));
            }
        }
        topics.is_fixed = !only.is_empty();
        Ok(topics)
    }

    /// The place of a topic; `None` if it is not verified.
    pub(super) async fn place(&mut self, name: &str) -> Result<Option<u32>, Failed> {
        if let Some(place) = self.places.get(name) {
            return Ok(Some(*place));
        }
        if self.is_fixed {
            return Ok(None);
        }
        if self.found.len() >= TOPICS_MAX {
            return Err(Failed::Usage(format!(
                "The events in the range belong to more than {TOPICS_MAX} topics. Select some with --topic."
            )));
        }
        let (reader, topic) = (Arc::clone(&self.reader), name.to_owned());
        let looked_up = tokio::task::spawn_blocking(move || reader.partitions(&topic)).await;
        let partitions = looked_up.map_err(|error| Failed::Failure(error.into()))?.map_err(read_error)?;
        let place = self.found.len() as u32;
        self.found.push(FoundTopic { name: name.to_owned(), partitions });
        self.places.insert(name.to_owned(), place);
        Ok(Some(place))
    }

    /// The place of a topic if it is verified.
    pub(super) fn known(&self, name: &str) -> Option<u32> {
        self.places.get(name).copied()
    }

    /// The topic at this place.
    pub(super) fn at(&self, place: u32) -> &FoundTopic {
        &self.found[place as usize]
    }

    pub(super) fn into_parts(self) -> (Arc<TopicReader>, Vec<FoundTopic>) {
        (self.reader, self.found)
    }
}
