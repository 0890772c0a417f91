//! Settings whose value is one of a few words.

use super::findings::Problem;
use super::reading::reader::Reader;
use super::reading::values::{FromText, unknown_word};
use super::setting::{Setting, choice};

choice! {
    /// What happens to a row that Kafka has acknowledged.
    OnSent {
        /// `sent_at` is set, and the reaper deletes the row later.
        Mark = "mark",
        /// The row is deleted.
        Delete = "delete",
    }
}

choice! {
    /// What happens to a row that can never become a record.
    #[derive(Default)]
    OnRejected {
        /// It moves to the dead letters, and later rows of its key continue.
        #[default]
        DeadLetter = "dead-letter",
        /// It stays, and later rows of its key wait until an operator resolves it.
        BlockKey = "block-key",
    }
}

choice! {
    /// Which headers each record gets.
    Envelope {
        /// `event_id` and `event_type`, or those of `[outbox.headers]`.
        None = "none",
        /// The attributes of CloudEvents 1.0 in binary mode, and those of `[outbox.headers]`.
        CloudEvents = "cloudevents",
    }
}

choice! {
    /// The form of log lines.
    LogFormat {
        /// journald under systemd, else text.
        Auto = "auto",
        /// Human-readable lines.
        Text = "text",
        /// One JSON object per line.
        Json = "json",
        /// Journal entries with fields.
        Journald = "journald",
    }
}

choice! {
    /// How to send the client ID and secret to a token endpoint (RFC 6749, 2.3.1).
    ClientAuthentication {
        /// In the `Authorization` header.
        Basic = "basic",
        /// In the body.
        Post = "post",
    }
}
