//! Maps errors of the Kafka client to reasons. The table is [`crate::errors::codes`].

use crate::errors::codes::CODES;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use relay::failure::KafkaFailure;
use relay::reason::{Reason, UNKNOWN};

/// The reason of this error code, or unknown if the table does not list it.
pub fn reason(code: RDKafkaErrorCode) -> &'static Reason {
    CODES.iter().find(|(_, codes)| codes.contains(&code)).map_or(&UNKNOWN, |(reason, _)| *reason)
}

/// The failure of a client error. `what` is the action that failed.
pub fn failure(what: &str, error: &KafkaError) -> KafkaFailure {
    let text = match error {
        KafkaError::MessageProduction(code) => code.to_string(),
        error => error.to_string(),
    };
    error.rdkafka_error_code().map_or(&UNKNOWN, reason).failure(format!("{what} failed: {text}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use relay::failure::FailureKind;

    #[test]
    fn a_code_that_is_not_listed_is_unknown() {
        assert_eq!(*reason(RDKafkaErrorCode::End), UNKNOWN);
        let without_code = failure("testing", &KafkaError::Canceled);
        assert_eq!((without_code.kind, without_code.reason), (FailureKind::Unknown, "unknown"));
    }
}
