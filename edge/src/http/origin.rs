//! Which web pages may use the server.
//!
//! Browsers say in `Origin` which page a request comes from. Only pages that `edge.allowed_origins` names, and pages of
//! this very server, may read answers and open sockets. A request without one comes from no page, and tokens are never
//! sent by a browser on its own, so a strange origin needs no refusal on REST: it gets an answer that its page cannot read.

use std::borrow::Cow;
use std::sync::Arc;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use warp::http::{HeaderMap, HeaderValue, header};
use warp::reply::Response;

/// How long a browser remembers what a page may do: what Chromium caps it at.
const PREFLIGHT_SECONDS: u32 = 7200;

/// The origin of a web page, such as `https://chat.example.com`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Origin(String);

impl TryFrom<String> for Origin {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
        let is_host = |host: &str| {
            !host.is_empty()
                && host.bytes().all(|byte| byte.is_ascii_graphic() && !b"/*@?#\\".contains(&byte))
        };
        if rest.is_some_and(is_host) && text == text.to_ascii_lowercase() {
            Ok(Self(text))
        } else {
            Err(format!(
                "`{text}` is not an origin; write one like \"https://chat.example.com\", without a path"
            ))
        }
    }
}

impl From<Origin> for String {
    fn from(origin: Origin) -> Self {
        origin.0
    }
}

impl JsonSchema for Origin {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Origin".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "description": "an origin such as \"https://chat.example.com\"" })
    }
}

/// The origins that are allowed. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Origins(Arc<[Origin]>);

/// A page that may read an answer.
pub(crate) struct Reader {
    origin: HeaderValue,
    /// Its browser asks beforehand what it may send.
    is_preflight: bool,
}

impl Origins {
    pub(crate) fn new(allowed: &[Origin]) -> Self {
        Self(allowed.into())
    }

    /// Whether a page of this origin, or whoever sends none, may open a socket. An origin that is the very host that is
    /// asked is no other site's: many libraries that are no browser send it.
    ///
    /// A page whose name is made to lead here (DNS rebinding) is its own host as well, and gains nothing: a browser keeps
    /// tokens by the name of a page and sends none by itself, so this one has none to present.
    pub(crate) fn admit(&self, headers: &HeaderMap) -> bool {
        let mut origins = headers.get_all(header::ORIGIN).iter();
        origins.all(|origin| self.allows(origin) || is_own(origin, headers))
    }

    fn allows(&self, origin: &HeaderValue) -> bool {
        self.0.iter().any(|allowed| allowed.0.as_bytes() == origin.as_bytes())
    }

    /// The page that sends a request, if it may read the answer.
    pub(crate) fn reader(&self, headers: &HeaderMap) -> Option<Reader> {
        let origin = headers.get(header::ORIGIN).filter(|origin| self.allows(origin))?.clone();
        let is_preflight = headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
        Some(Reader { origin, is_preflight })
    }

    /// Lets a page read an answer.
    pub(crate) fn share(&self, response: &mut Response, reader: Option<Reader>) {
        if self.0.is_empty() {
            return;
        }
        let headers = response.headers_mut();
        // Also where nobody may: a cache must not give another page what this one got.
        headers.append(header::VARY, HeaderValue::from_static("origin"));
        let Some(Reader { origin, is_preflight }) = reader else { return };
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        let exposed = HeaderValue::from_static("retry-after, x-request-id");
        headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, exposed);
        if let Some(methods) = headers.get(header::ALLOW).cloned().filter(|_| is_preflight) {
            headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, methods);
            let sent = HeaderValue::from_static("authorization, content-type, x-request-id");
            headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, sent);
            headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from(PREFLIGHT_SECONDS));
        }
    }
}

/// Whether an origin is the host that the request is for, in whichever scheme: behind a proxy it is not known here.
fn is_own(origin: &HeaderValue, headers: &HeaderMap) -> bool {
    let (Ok(origin), Some(Ok(host))) = (origin.to_str(), headers.get(header::HOST).map(HeaderValue::to_str))
    else {
        return false;
    };
    let (site, usual_port) = match (origin.strip_prefix("https://"), origin.strip_prefix("http://")) {
        (Some(site), _) => (site, ":443"),
        (None, Some(site)) => (site, ":80"),
        (None, None) => return false,
    };
    let named = |site: &str| site.strip_suffix(usual_port).unwrap_or(site).to_ascii_lowercase();
    !site.is_empty() && named(site) == named(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_has_no_path_and_no_wildcard() {
        let origin = |text: &str| Origin::try_from(text.to_owned());
        for good in ["https://chat.example.com", "http://localhost:3000", "http://[::1]:80"] {
            assert!(origin(good).is_ok(), "{good}");
        }
        for bad in
            ["*", "null", "chat.example.com", "https://", "https://a/", "https://*.a", "ftp://a", "https://A"]
        {
            assert!(origin(bad).unwrap_err().contains("https://chat.example.com"), "{bad}");
        }
    }

    #[test]
    fn sockets_are_for_the_pages_that_are_named() {
        let origins = Origins::new(&[Origin("https://a.example".to_owned())]);
        let from = |values: &[&'static str]| -> HeaderMap {
            values.iter().map(|value| (header::ORIGIN, HeaderValue::from_static(value))).collect()
        };
        assert!(origins.admit(&from(&["https://a.example"])));
        assert!(origins.admit(&HeaderMap::new()), "no browser");
        for strange in ["https://a.example.evil.example", "http://a.example", "null"] {
            assert!(!origins.admit(&from(&[strange])), "{strange}");
        }
        assert!(!origins.admit(&from(&["https://a.example", "https://b.example"])));
        assert!(!Origins::default().admit(&from(&["https://a.example"])));
    }
    #[test]
    fn a_page_of_the_server_itself_may_connect() {
        let admits = |origin: &'static str, host: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::ORIGIN, HeaderValue::from_static(origin));
            headers.insert(header::HOST, HeaderValue::from_static(host));
            Origins::default().admit(&headers)
        };
        for (origin, host) in [
            ("http://127.0.0.1:8080", "127.0.0.1:8080"),
            ("http://[::1]:8080", "[::1]:8080"),
            ("https://chat.example", "Chat.Example"),
            ("https://chat.example", "chat.example:443"),
            ("http://chat.example:80", "chat.example"),
        ] {
            assert!(admits(origin, host), "{origin} at {host}");
        }
        for (origin, host) in [
            ("http://127.0.0.1:3000", "127.0.0.1:8080"),
            ("https://chat.example", "chat.example:80"),
            ("https://chat.example", "chat.example.evil.example"),
            ("https://evil.example", "chat.example"),
            ("ws://chat.example", "chat.example"),
            ("chat.example", "chat.example"),
            ("null", "null"),
            ("http://", ""),
        ] {
            assert!(!admits(origin, host), "{origin} at {host}");
        }
        let mut unhosted = HeaderMap::new();
        unhosted.insert(header::ORIGIN, HeaderValue::from_static("http://a.example"));
        assert!(!Origins::default().admit(&unhosted));
    }
}
