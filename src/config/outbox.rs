//! `[outbox]`: the table, and how its events become records.

use super::catalogue::Outbox;
use kafka::headers;
use kafka::headers::EnvelopeOptions;
use postgres::columns::Columns;
use postgres::schema::columns::TopicColumn;
use relay::topic::TopicRules;
use settings::findings::Problem;
use settings::reader::Reader;
use settings::setting::Section;

/// Topic templates without a fixed part.
const WRITERS_CHOOSE: [&str; 2] = ["{aggregate_type}", "{event_type}"];

impl Outbox {
    pub(super) fn from(reader: &mut Reader) -> Option<Outbox> {
        let outbox = Outbox::read(reader);
        let columns = Columns::from(reader);
        let outbox = outbox?;
        let options = EnvelopeOptions {
            envelope: (&Outbox::envelope, outbox.envelope),
            source: (&Outbox::cloudevents_source, outbox.cloudevents_source.as_deref()),
        };
        let headers = headers::read(options, reader);
        if WRITERS_CHOOSE.contains(&outbox.topic.to_string().as_str()) {
            let message = format!(
                "[outbox] topic is \"{}\", so anyone who can insert events can write to any topic",
                outbox.topic
            );
            let help = "add a fixed prefix, such as \"events.{aggregate_type}\", or limit the relay's Kafka user to some topics";
            reader.warn(&Outbox::topic, Problem::new(message, help));
        }
        let table = outbox.table.clone().with_columns(columns);
        Some(Outbox { table, headers, ..outbox })
    }
}

/// The configuration requires the column `topic` if it allows topics.
impl From<&Outbox> for TopicRules {
    fn from(outbox: &Outbox) -> TopicRules {
        let allow = outbox.topic_allow.clone();
        TopicRules { template: outbox.topic.clone(), column: allow.is_some(), allow }
    }
}

impl From<&Outbox> for TopicColumn {
    fn from(outbox: &Outbox) -> TopicColumn {
        (&TopicRules::from(outbox)).into()
    }
}
