//! What librdkafka wants to say, said through `tracing`.

use rdkafka::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::ConsumerContext;
use rdkafka::error::KafkaError;

/// For clients that are only asked questions: nobody waits for what they notice by themselves.
pub(super) struct Quiet;

impl ClientContext for Quiet {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        log_line(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        log_error(&error, reason);
    }
}

impl ConsumerContext for Quiet {}

pub(super) fn log_line(level: RDKafkaLogLevel, facility: &str, message: &str) {
    match level {
        RDKafkaLogLevel::Emerg
        | RDKafkaLogLevel::Alert
        | RDKafkaLogLevel::Critical
        | RDKafkaLogLevel::Error
        | RDKafkaLogLevel::Warning => tracing::warn!(facility, detail = message, "kafka client"),
        RDKafkaLogLevel::Notice | RDKafkaLogLevel::Info => {
            tracing::info!(facility, detail = message, "kafka client");
        }
        RDKafkaLogLevel::Debug => tracing::debug!(facility, detail = message, "kafka client"),
    }
}

/// Connections come and go by themselves; whoever waits for an answer gets an error of its own.
pub(super) fn log_error(error: &KafkaError, reason: &str) {
    tracing::debug!(%error, reason, "kafka client error");
}
