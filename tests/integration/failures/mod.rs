//! Topics, brokers, connections and relays that fail.

mod advertised;
mod contended_holds;
mod crashes;
mod held_topics;
mod kafka_outage;
mod log_lines;
mod many_topics;
mod probes;
mod quotas;
mod takeover;
mod watchdog;
