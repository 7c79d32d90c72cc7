//! What is the same for every request, whichever route answers it: its id, and the address it comes from.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ipnet::IpNet;
use ulid::Ulid;
use warp::http::{Extensions, HeaderMap, HeaderName, HeaderValue};
use warp::reply::Response;

use super::error;

/// How a request is called in logs, in error bodies and by whoever asks about it.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
/// Longer names are not looked for in logs.
const LONGEST_REQUEST_ID: usize = 128;

/// The client's name for the request, or ours.
#[derive(Debug, Clone)]
pub(crate) struct RequestId(HeaderValue);

impl RequestId {
    fn of(headers: &HeaderMap) -> Self {
        headers.get(REQUEST_ID).filter(|id| is_sane(id)).cloned().map_or_else(Self::generate, Self)
    }

    fn generate() -> Self {
        let id = format!("req_{}", Ulid::generate());
        Self(HeaderValue::try_from(id).expect("letters and digits are a header's value"))
    }

    pub(crate) fn as_str(&self) -> &str {
        // Both kinds are visible ASCII.
        self.0.to_str().unwrap_or_default()
    }
}

/// Whether a name can stand in a log as it is.
fn is_sane(id: &HeaderValue) -> bool {
    let allowed = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.:/+=".contains(byte);
    (1..=LONGEST_REQUEST_ID).contains(&id.len()) && id.as_bytes().iter().all(allowed)
}

/// Where a request comes from: an extension of every request. Behind trusted proxies it is what they say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ClientAddress(pub(crate) IpAddr);

impl ClientAddress {
    /// Every proxy adds whom it got the request from at the end. So the list is read from there, as far as it was
    /// written by proxies that are trusted: the rest may be invented.
    fn of(peer: IpAddr, headers: &HeaderMap, trusted: &[IpNet]) -> Self {
        let is_trusted = |address: &IpAddr| trusted.iter().any(|proxies| proxies.contains(address));
        let mut client = peer.to_canonical();
        let lines: Vec<_> = headers.get_all(FORWARDED_FOR).iter().collect();
        for line in lines.into_iter().rev() {
            for hop in line.to_str().unwrap_or_default().rsplit(',') {
                if !is_trusted(&client) {
                    return Self(client);
                }
                let Some(address) = hop_address(hop.trim()) else { return Self(client) };
                client = address.to_canonical();
            }
        }
        Self(client)
    }
}

/// `192.0.2.1`, `2001:db8::1`, and some add a port.
fn hop_address(hop: &str) -> Option<IpAddr> {
    hop.parse().ok().or_else(|| hop.parse().ok().map(|address: SocketAddr| address.ip()))
}

/// One request and its response.
pub(super) struct Exchange(RequestId);

impl Exchange {
    /// Tells the routes what they may want to know.
    pub(super) fn begin(
        headers: &HeaderMap,
        extensions: &mut Extensions,
        peer: IpAddr,
        trusted: &Arc<[IpNet]>,
    ) -> Self {
        let request_id = RequestId::of(headers);
        extensions.insert(ClientAddress::of(peer, headers, trusted));
        extensions.insert(request_id.clone());
        Self(request_id)
    }

    pub(super) fn end(self, response: Response) -> Response {
        let mut response = error::write_body(response, &self.0);
        response.headers_mut().insert(REQUEST_ID, self.0.0);
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: &HeaderName, values: &[&str]) -> HeaderMap {
        values.iter().map(|value| (name.clone(), HeaderValue::from_str(value).unwrap())).collect()
    }

    #[test]
    fn a_sane_request_id_is_kept() {
        let id = |value: &str| RequestId::of(&headers(&REQUEST_ID, &[value])).as_str().to_owned();
        assert_eq!(id("trace-1/a:b"), "trace-1/a:b");
        for insane in ["", "a b", "a\"b", "{}", "\u{e9}", &"x".repeat(129)] {
            assert!(id(insane).starts_with("req_"), "{insane}");
        }
    }

    #[test]
    fn only_trusted_proxies_are_believed() {
        let trusted: Arc<[IpNet]> = Arc::new(["10.0.0.0/8".parse().unwrap(), "::1/128".parse().unwrap()]);
        let client = |peer: &str, forwarded: &[&str]| {
            let headers = headers(&FORWARDED_FOR, forwarded);
            ClientAddress::of(peer.parse().unwrap(), &headers, &trusted).0.to_string()
        };
        assert_eq!(client("192.0.2.9", &["1.1.1.1"]), "192.0.2.9", "it speaks for itself");
        assert_eq!(client("10.0.0.1", &["1.1.1.1"]), "1.1.1.1");
        assert_eq!(client("10.0.0.1", &["6.6.6.6, 1.1.1.1, 10.0.0.2"]), "1.1.1.1", "the first was invented");
        assert_eq!(client("10.0.0.1", &["6.6.6.6", "1.1.1.1:4711"]), "1.1.1.1");
        assert_eq!(client("::ffff:10.0.0.1", &["[2001:db8::1]:80"]), "2001:db8::1");
        assert_eq!(client("10.0.0.1", &["1.1.1.1, unknown"]), "10.0.0.1");
        assert_eq!(client("10.0.0.1", &[]), "10.0.0.1");
        assert_eq!(client("10.0.0.1", &["10.0.0.3, 10.0.0.2"]), "10.0.0.3");
    }
}
