//! A client for one address on the web: posts and tells what came back, at once or as it comes ([`Coming`]).
//!
//! HTTP/1.1 with connections that are used again, TLS by rustls with the machine's own certificates. Redirects are not
//! followed: who is allowed to receive what is posted is said in the configuration and not by a server. An address may
//! hold secrets in its path and query, so nothing here shows more of it than its host.

mod coming;

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use http::header::{HeaderName, HeaderValue};
use http::{Method, Request, StatusCode, Uri};
use http_body_util::Full;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};

pub use coming::Coming;

/// Shorter than servers commonly keep idle connections, so that they are not closed under a request.
const KEEP_IDLE: Duration = Duration::from_secs(15);

/// Where to post. Shown as its host only.
#[derive(Clone)]
pub struct Address(Uri);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    #[error("it is not an address; write one like https://example.org/hook")]
    NotAUrl,
    #[error("it begins with neither https:// nor http://")]
    Scheme,
    #[error("it holds a user name or a password; give them as a header")]
    Credentials,
}

impl Address {
    pub fn parse(text: &str) -> Result<Self, AddressError> {
        let uri: Uri = text.trim().parse().map_err(|_| AddressError::NotAUrl)?;
        if !matches!(uri.scheme_str(), Some("http" | "https")) {
            return Err(AddressError::Scheme);
        }
        let authority = uri.authority().ok_or(AddressError::NotAUrl)?;
        if authority.as_str().contains('@') {
            return Err(AddressError::Credentials);
        }
        Ok(Self(uri))
    }

    fn is_https(&self) -> bool {
        self.0.scheme_str() == Some("https")
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.0.scheme_str().unwrap_or_default(), self.0.host().unwrap_or_default())
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Why there was no answer.
#[derive(Debug, thiserror::Error)]
pub enum PostError {
    #[error("the certificates of this machine cannot be read")]
    Certificates(#[source] std::io::Error),
    #[error("a header cannot be sent: {0}")]
    Header(&'static str),
    #[error("{host} did not answer within {after:?}")]
    TimedOut { host: String, after: Duration },
    #[error("{host} cannot be reached")]
    Unreachable { host: String, source: hyper_util::client::legacy::Error },
    #[error("the answer of {host} broke off")]
    BrokeOff { host: String, source: Box<dyn std::error::Error + Send + Sync> },
    #[error("the answer of {host} has more than {bytes} bytes")]
    TooLong { host: String, bytes: usize },
}

/// What came back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    pub status: StatusCode,
    /// How long the receiver asked to be left alone.
    pub retry_after: Option<Duration>,
    /// The beginning of what it said; empty if that could not be read.
    pub text: String,
}

/// One receiver.
pub struct Receiver {
    address: Address,
    headers: Vec<(HeaderName, HeaderValue)>,
    timeout: Duration,
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
}

impl Receiver {
    /// Reads the machine's certificates if they are needed; connects when something is posted.
    pub fn new(
        address: Address,
        headers: &[(String, String)],
        timeout: Duration,
        connections: usize,
    ) -> Result<Self, PostError> {
        let provider = rustls::crypto::ring::default_provider();
        let builder = if address.is_https() {
            let builder = HttpsConnectorBuilder::new().with_provider_and_native_roots(provider);
            builder.map_err(PostError::Certificates)?
        } else {
            let config = rustls::ClientConfig::builder_with_provider(provider.into())
                .with_safe_default_protocol_versions()
                .map_err(|error| PostError::Certificates(std::io::Error::other(error)))?;
            let config = config.with_root_certificates(rustls::RootCertStore::empty()).with_no_client_auth();
            HttpsConnectorBuilder::new().with_tls_config(config)
        };
        let mut connector = HttpConnector::new();
        connector.enforce_http(false);
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(timeout));
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(KEEP_IDLE)
            .pool_max_idle_per_host(connections)
            .build(builder.https_or_http().enable_http1().wrap_connector(connector));
        let headers = headers.iter().map(|(name, value)| header(name, value)).collect::<Result<_, _>>()?;
        Ok(Self { address, headers, timeout, client })
    }

    /// Posts and waits for the answer.
    pub async fn post(&self, body: Bytes, headers: &[(&str, String)]) -> Result<Answer, PostError> {
        let request = self.request(body, headers)?;
        self.in_time(async { Ok(self.send(request).await?.into_answer().await) }).await
    }

    /// Posts and waits until an answer begins; how long the rest may take is up to whoever reads it.
    pub async fn begin(&self, body: Bytes, headers: &[(&str, String)]) -> Result<Coming, PostError> {
        let request = self.request(body, headers)?;
        self.in_time(self.send(request)).await
    }

    fn request(&self, body: Bytes, headers: &[(&str, String)]) -> Result<Request<Full<Bytes>>, PostError> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.address.0.clone();
        for (name, value) in headers {
            let (name, value) = header(name, value)?;
            request.headers_mut().insert(name, value);
        }
        for (name, value) in &self.headers {
            request.headers_mut().insert(name.clone(), value.clone());
        }
        Ok(request)
    }

    async fn in_time<T>(&self, work: impl Future<Output = Result<T, PostError>>) -> Result<T, PostError> {
        match tokio::time::timeout(self.timeout, work).await {
            Ok(answer) => answer,
            Err(_) => Err(PostError::TimedOut { host: self.address.to_string(), after: self.timeout }),
        }
    }

    async fn send(&self, request: Request<Full<Bytes>>) -> Result<Coming, PostError> {
        let unreachable = |source| PostError::Unreachable { host: self.address.to_string(), source };
        let answer = self.client.request(request).await.map_err(unreachable)?;
        Ok(Coming::new(answer, self.address.to_string()))
    }
}

/// Values may be secret: they are neither shown in errors nor when headers are printed.
fn header(name: &str, value: &str) -> Result<(HeaderName, HeaderValue), PostError> {
    let name = HeaderName::try_from(name)
        .map_err(|_| PostError::Header("its name has other characters than a name"))?;
    let mut value = HeaderValue::try_from(value)
        .map_err(|_| PostError::Header("its value has other characters than text"))?;
    value.set_sensitive(true);
    Ok((name, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_shown_as_its_host() {
        let address = Address::parse("https://hooks.example.org:8443/services/T0/secret?token=x").unwrap();
        assert_eq!(format!("{address} {address:?}"), "https://hooks.example.org https://hooks.example.org");
        for (text, error) in [
            ("nothing", AddressError::Scheme),
            ("ftp://example.org", AddressError::Scheme),
            ("https://user:pw@example.org/", AddressError::Credentials),
            ("https://exa mple/", AddressError::NotAUrl),
        ] {
            assert_eq!(Address::parse(text).err(), Some(error), "{text}");
        }
    }

    #[test]
    fn a_header_that_cannot_be_sent_is_not_shown() {
        let headers = [("x".to_owned(), "se\ncret".to_owned())];
        let address = Address::parse("http://localhost/").unwrap();
        let error = Receiver::new(address, &headers, KEEP_IDLE, 1).err().unwrap().to_string();
        assert!(!error.contains("cret"), "{error}");
    }
}
