//! Topic `verifications.requested`: somebody registered a phone number and is to be sent a code, so that they can prove
//! it is theirs. For a notifier, which sends it.
//!
//! The events hold codes in the clear, so they are kept for an hour only, longer than a code is good for; and the
//! code is left out wherever an event is printed for debugging.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::event::{Event, Payload, derived_id};
use crate::log::{Retention, TopicSpec};
use crate::model::{Timestamp, UserId};

pub const NAME: &str = "verifications.requested";

/// A notifier that was down for longer than this would send codes that have expired.
const KEPT_FOR: Duration = Duration::from_secs(60 * 60);

pub fn spec() -> TopicSpec {
    TopicSpec { retention: Retention { age: Some(KEPT_FOR), bytes: None }, ..super::spec(NAME) }
}

pub type VerificationRequested = Event<RequestedVerification>;

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestedVerification {
    pub user_id: UserId,
    /// Where the code goes; E.164.
    pub phone_number: String,
    pub code: String,
    pub expires_at: Timestamp,
}

impl Payload for RequestedVerification {
    const EVENT_TYPE: &'static str = "VerificationRequested";

    fn key(&self) -> &str {
        self.user_id.as_str()
    }
}

impl fmt::Debug for RequestedVerification {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("RequestedVerification");
        shown.field("user_id", &self.user_id).field("phone_number", &self.phone_number);
        shown.field("expires_at", &self.expires_at).finish_non_exhaustive()
    }
}

impl VerificationRequested {
    /// A code has one event, however often it is told of: its id is made of whose code it is and when that ends.
    pub fn of(requested: RequestedVerification, event_time: Timestamp) -> Self {
        let what = [requested.user_id.as_str(), requested.phone_number.as_str(), "verification"];
        Self { event_id: derived_id(requested.expires_at, &what), event_time, payload: requested }
    }
}

#[cfg(test)]
mod tests {
    use super::super::event::testing::assert_written_as;
    use super::*;

    const DOCUMENTED: &str = r#"{
      "event_type": "VerificationRequested",
      "event_id": "evt_01HQX",
      "event_time": "2026-01-30T14:30:00.000Z",
      "partition_key": "user_456",
      "payload": {
        "user_id": "user_456",
        "phone_number": "+41791234567",
        "code": "042137",
        "expires_at": "2026-01-30T14:40:00.000Z"
      }
    }"#;

    fn requested() -> VerificationRequested {
        let time = Timestamp::from_unix_millis(1_769_783_400_000);
        let payload = RequestedVerification {
            user_id: "user_456".into(),
            phone_number: "+41791234567".to_owned(),
            code: "042137".to_owned(),
            expires_at: time.plus(Duration::from_secs(600)),
        };
        VerificationRequested::of(payload, time)
    }

    #[test]
    fn written_as_documented() {
        assert_eq!(requested().event_id, requested().event_id, "the same however often it is told");
        assert_written_as(&Event { event_id: "evt_01HQX".into(), ..requested() }, DOCUMENTED);
    }

    #[test]
    fn a_code_is_not_printed() {
        let printed = format!("{:?}", requested());
        assert!(printed.contains("+41791234567") && !printed.contains("042137"), "{printed}");
    }
}
