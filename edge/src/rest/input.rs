//! What comes in: the parts of a request, and how they are read.
//!
//! Everything is bounded before it is understood: how long a body is and how long it takes, how deep its JSON is nested.
//! What is not understood is refused with the reason, so that a typo is seen: unknown fields, unknown query parameters,
//! another content type.

use std::pin::Pin;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use courant_connectors::model::commands::{Code, Refusal};
use futures::{Stream, StreamExt as _};
use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::time::timeout;
use warp::http::{HeaderMap, Method, header};
use warp::{Filter, Rejection};

use super::route::Place;
use crate::http::{ClientAddress, RequestId};

/// The largest message is 4 KiB, six times as long if every character is escaped; a thousand members are 32 KiB.
pub(super) const LONGEST_BODY: usize = 64 * 1024;
/// Far deeper than any request is, far less deep than what a parser that recurses can bear.
const DEEPEST_JSON: usize = 32;
const LONGEST_QUERY: usize = 2048;
/// A client that takes longer to send its body is cut off: it holds one of the places for requests.
pub(super) const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// Of a body that is refused for its length, what is still read and thrown away. A client that is writing when its
/// connection ends may lose the answer with it, so it gets to finish unless that takes too much.
const MOST_DISCARDED: usize = 4 << 20;
const DISCARD_TIMEOUT: Duration = Duration::from_secs(1);
/// Of what is wrong with a request, which may quote it.
const LONGEST_REASON: usize = 300;

/// A request whose body has yet to come.
pub(super) struct Arriving {
    pub(super) method: Method,
    pub(super) place: Place,
    pub(super) query: String,
    pub(super) headers: HeaderMap,
    pub(super) address: ClientAddress,
    pub(super) request_id: RequestId,
    pub(super) body: Body,
}

pub(super) type Body = Pin<Box<dyn Stream<Item = Result<Bytes, warp::Error>> + Send>>;

/// Takes a request apart whose path is found; rejects any other, untouched.
pub(super) fn arriving(
    find: impl Fn(&str) -> Option<Place> + Clone + Send + Sync + 'static,
) -> impl Filter<Extract = (Arriving,), Error = Rejection> + Clone {
    let place = warp::path::full().and_then(move |path: warp::path::FullPath| {
        std::future::ready(find(path.as_str()).ok_or_else(warp::reject::not_found))
    });
    let query = warp::query::raw().or(warp::any().map(String::new)).unify();
    place
        .and(warp::method())
        .and(query)
        .and(warp::header::headers_cloned())
        .and(warp::ext::get::<ClientAddress>())
        .and(warp::ext::get::<RequestId>())
        .and(warp::body::stream())
        .map(|place, method, query, headers, address, request_id, body| Arriving {
            method,
            place,
            query,
            headers,
            address,
            request_id,
            body: boxed(body),
        })
}

fn boxed(body: impl Stream<Item = Result<impl Buf, warp::Error>> + Send + 'static) -> Body {
    Box::pin(body.map(|part| part.map(|mut part| part.copy_to_bytes(part.remaining()))))
}

/// Nothing: no body, an empty one, or an empty object; no query parameters.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Nothing {}

pub(super) fn bad_request(reason: impl Into<String>) -> Refusal {
    let mut reason = reason.into();
    if reason.len() > LONGEST_REASON {
        let end = (0..=LONGEST_REASON).rev().find(|&end| reason.is_char_boundary(end)).unwrap_or(0);
        reason.truncate(end);
        reason.push('…');
    }
    Refusal::new(Code::BadRequest, reason)
}

fn too_large() -> Refusal {
    Refusal::new(Code::TooLarge, format!("a body has at most {LONGEST_BODY} bytes"))
}

/// The query parameters as `T`.
pub(super) fn read_query<T: DeserializeOwned>(query: &str) -> Result<T, Refusal> {
    if query.len() > LONGEST_QUERY {
        return Err(bad_request(format!("a query has at most {LONGEST_QUERY} bytes")));
    }
    serde_urlencoded::from_str(query).map_err(|error| bad_request(format!("query: {error}")))
}

/// The whole body as `T`.
pub(super) async fn read_body<T: DeserializeOwned>(headers: &HeaderMap, body: Body) -> Result<T, Refusal> {
    let body = timeout(BODY_TIMEOUT, collect(headers, body)).await.map_err(|_| {
        bad_request(format!("the body did not arrive within {} seconds", BODY_TIMEOUT.as_secs()))
    })??;
    if body.is_empty() {
        return read_json(b"{}");
    }
    if !is_json(headers) {
        return Err(bad_request("a body is JSON; send it with content-type: application/json"));
    }
    read_json(&body)
}

async fn collect(headers: &HeaderMap, mut body: Body) -> Result<Bytes, Refusal> {
    let announced = headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    if announced.is_some_and(|length: u64| length > LONGEST_BODY as u64) {
        // Who asks before sending is only told to go on when the body is read.
        if !headers.contains_key(header::EXPECT) {
            discard(body).await;
        }
        return Err(too_large());
    }
    let mut whole = BytesMut::new();
    while let Some(part) = body.next().await {
        let part = part.map_err(|_| bad_request("the body broke off"))?;
        if whole.len() + part.len() > LONGEST_BODY {
            drop(whole);
            discard(body).await;
            return Err(too_large());
        }
        whole.extend_from_slice(&part);
    }
    Ok(whole.freeze())
}

/// Reads on for a while.
async fn discard(mut body: Body) {
    let to_the_end = async {
        let mut discarded = 0;
        while discarded < MOST_DISCARDED
            && let Some(Ok(part)) = body.next().await
        {
            discarded += part.len();
        }
    };
    // Whoever takes longer may lose the answer.
    let _ = timeout(DISCARD_TIMEOUT, to_the_end).await;
}

/// `application/json`, with or without parameters.
fn is_json(headers: &HeaderMap) -> bool {
    let content_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let essence = content_type.and_then(|value| value.split(';').next()).unwrap_or_default();
    essence.trim().eq_ignore_ascii_case("application/json")
}

pub(super) fn read_json<T: DeserializeOwned>(body: &[u8]) -> Result<T, Refusal> {
    if depth(body) > DEEPEST_JSON {
        return Err(bad_request(format!("JSON is nested at most {DEEPEST_JSON} deep")));
    }
    // A list of values would be read as a struct too, in the order of its fields.
    if body.trim_ascii_start().first() != Some(&b'{') {
        return Err(bad_request("body: a JSON object is expected"));
    }
    serde_json::from_slice(body).map_err(|error| bad_request(format!("body: {error}")))
}

/// How deep brackets are nested; what is in strings does not count.
fn depth(json: &[u8]) -> usize {
    let (mut deepest, mut open, mut in_string, mut escaped) = (0_usize, 0_usize, false, false);
    for byte in json {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'[' | b'{' if !in_string => {
                open += 1;
                deepest = deepest.max(open);
            }
            b']' | b'}' if !in_string => open = open.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depth_is_of_brackets_outside_of_strings() {
        for (json, expected) in [
            ("1", 0),
            ("{}", 1),
            (r#"{"a":[{"b":"[[[\"[["}]}"#, 3),
            ("[[", 2),
            ("]]][", 1),
            (r#""\\"[[]]"#, 2),
        ] {
            assert_eq!(depth(json.as_bytes()), expected, "{json}");
        }
    }

    #[test]
    fn a_reason_is_short_and_still_text() {
        let refusal = bad_request("é".repeat(1000));
        assert!(refusal.message.len() <= LONGEST_REASON + 3 && refusal.message.ends_with('…'));
    }

    #[test]
    fn a_list_is_no_object() {
        #[derive(Deserialize)]
        struct Pair {
            #[allow(dead_code)]
            first: u32,
        }
        assert!(read_json::<Pair>(b" {\"first\": 1}").is_ok());
        assert_eq!(read_json::<Pair>(b"[1]").err().unwrap().code, Code::BadRequest);
    }
}
