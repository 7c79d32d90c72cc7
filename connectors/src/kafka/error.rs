//! What librdkafka's errors mean to a caller.

use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};

use crate::log::{LogError, MAX_RECORD_BYTES, Topic};

/// An error of a question or of setting something up: nothing was written, whatever went wrong.
pub(super) fn from_asking(error: &KafkaError, doing: &str) -> LogError {
    match error.rdkafka_error_code() {
        Some(
            Code::TopicAuthorizationFailed
            | Code::GroupAuthorizationFailed
            | Code::ClusterAuthorizationFailed,
        ) => LogError::NotAllowed { access: "read", name: doing.to_owned() },
        Some(Code::UnsupportedFeature | Code::UnsupportedVersion) => {
            LogError::Invalid(format!("this Kafka cluster does not offer what is needed to {doing}"))
        }
        Some(code) => LogError::Unavailable(format!("cannot {doing}: {code}")),
        None => LogError::Unavailable(format!("cannot {doing}: {error}")),
    }
}

/// A client could not be made: the configuration is at fault.
#[allow(clippy::needless_pass_by_value, reason = "handed to map_err")]
pub(super) fn from_setting_up(error: KafkaError) -> LogError {
    match error {
        // the value is left out: it may be a secret
        KafkaError::ClientConfig(_, reason, key, _) => {
            LogError::Invalid(format!("Kafka's setting '{key}' is wrong: {reason}"))
        }
        other => LogError::Invalid(format!("cannot make a Kafka client: {other}")),
    }
}

/// Why a record was not confirmed. What is not known to be harmless may have been appended.
pub(super) fn from_delivery(code: Code, topic: &Topic, bytes: usize) -> LogError {
    match code {
        Code::MessageSizeTooLarge => LogError::TooLarge { bytes, limit: MAX_RECORD_BYTES },
        Code::UnknownTopic | Code::UnknownTopicOrPartition | Code::UnknownPartition => {
            LogError::NoSuchTopic { topic: topic.clone() }
        }
        Code::TopicAuthorizationFailed | Code::ClusterAuthorizationFailed => {
            LogError::NotAllowed { access: "append to", name: topic.to_string() }
        }
        Code::InvalidMessage | Code::InvalidRecord | Code::PolicyViolation | Code::InvalidTimestamp => {
            LogError::Invalid(format!("topic '{topic}' refused the record: {code}"))
        }
        Code::PurgeQueue => {
            LogError::Unavailable("the client was closed before the record was sent".to_owned())
        }
        code => LogError::UnknownOutcome(format!("append to topic '{topic}': {code}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Remedy;

    #[test]
    fn what_may_have_been_appended_is_never_called_failed() {
        let topic = Topic::from("t");
        let remedy = |code| from_delivery(code, &topic, 1).remedy();
        assert!(matches!(from_delivery(Code::PurgeInflight, &topic, 1), LogError::UnknownOutcome(_)));
        assert!(matches!(from_delivery(Code::RequestTimedOut, &topic, 1), LogError::UnknownOutcome(_)));
        assert_eq!(remedy(Code::NotEnoughReplicasAfterAppend), Remedy::Retry);
        assert_eq!(remedy(Code::MessageSizeTooLarge), Remedy::GiveUp);
        assert_eq!(remedy(Code::TopicAuthorizationFailed), Remedy::Stop);
    }

    #[test]
    fn a_wrong_setting_is_named_without_its_value() {
        let mut config = rdkafka::ClientConfig::new();
        config.set("sasl.pasword", "hunter2");
        let error = config.create_native_config().map(drop).unwrap_err();
        let shown = from_setting_up(error).to_string();
        assert!(shown.contains("'sasl.pasword'") && !shown.contains("hunter2"), "{shown}");
    }
}
