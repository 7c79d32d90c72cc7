//! An answer that has begun and whose rest is still to come, such as a text that a model writes.
//!
//! Bounded in bytes by whoever reads it, so that a server that never stops fills nothing. Dropping it closes the
//! connection.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{Response, StatusCode};
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;

use super::{Answer, PostError};

/// As much of an answer as is read for [`Answer`]. Nobody needs more than its beginning, and a connection with a short
/// rest can be used again.
const ANSWER_BYTES: usize = 16 * 1024;

type Failure = Box<dyn std::error::Error + Send + Sync>;

pub struct Coming {
    pub status: StatusCode,
    /// How long the receiver asked to be left alone.
    pub retry_after: Option<Duration>,
    /// Without parameters, in lower case; empty if it is not said.
    pub content_type: String,
    host: String,
    body: UnsyncBoxBody<Bytes, Failure>,
    read: usize,
}

impl Coming {
    pub(super) fn new<B>(answer: Response<B>, host: String) -> Self
    where
        B: BodyExt<Data = Bytes> + Send + 'static,
        B::Error: Into<Failure>,
    {
        let said = |name| answer.headers().get(name).and_then(|value| value.to_str().ok());
        let retry_after =
            said(RETRY_AFTER).and_then(|text| text.trim().parse().ok()).map(Duration::from_secs);
        let content_type = said(CONTENT_TYPE).and_then(|text| text.split(';').next()).unwrap_or_default();
        Self {
            status: answer.status(),
            retry_after,
            content_type: content_type.trim().to_ascii_lowercase(),
            host,
            body: answer.into_body().map_err(Into::into).boxed_unsync(),
            read: 0,
        }
    }

    /// The next part, none at the end; an error once there are more than so many bytes in all.
    pub async fn next(&mut self, most: usize) -> Result<Option<Bytes>, PostError> {
        loop {
            let Some(frame) = self.body.frame().await else { return Ok(None) };
            let broke_off = |source| PostError::BrokeOff { host: self.host.clone(), source };
            // What is no data is a trailer.
            let Ok(part) = frame.map_err(broke_off)?.into_data() else { continue };
            self.read += part.len();
            if self.read > most {
                return Err(PostError::TooLong { host: self.host.clone(), bytes: most });
            }
            return Ok(Some(part));
        }
    }

    /// The beginning of the rest. The status is the answer; what cannot be read costs the connection and nothing else.
    pub async fn into_answer(mut self) -> Answer {
        let mut text = Vec::new();
        while let Ok(Some(part)) = self.next(ANSWER_BYTES).await {
            text.extend_from_slice(&part);
        }
        let text = String::from_utf8_lossy(&text).into_owned();
        Answer { status: self.status, retry_after: self.retry_after, text }
    }
}
