//! Settings whose value is one of a few words.

use super::findings::Problem;
use super::reader::Reader;
use super::setting::{Setting, choice};
use super::values::{FromText, unknown_word};

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
        /// It moves to the dead letters, and the rows behind it continue.
        #[default]
        DeadLetter = "dead-letter",
        /// It stays, and the rows of its key wait behind it until an operator decides.
        BlockKey = "block-key",
    }
}

choice! {
    /// A header that records carry only on request, since each costs time.
    OptionalHeader {
        /// The row's aggregate type.
        AggregateType = "aggregate_type",
        /// When the row was inserted.
        CreatedAt = "created_at",
    }
}

choice! {
    /// The form of log lines.
    LogFormat {
        /// journald under systemd, else text.
        Auto = "auto",
        /// Lines for people.
        Text = "text",
        /// One JSON object a line.
        Json = "json",
        /// Entries with fields in the journal.
        Journald = "journald",
    }
}

choice! {
    /// How the client's id and secret are sent to a token endpoint (RFC 6749, 2.3.1).
    ClientAuthentication {
        /// In the header `Authorization`.
        Basic = "basic",
        /// In the body.
        Post = "post",
    }
}
