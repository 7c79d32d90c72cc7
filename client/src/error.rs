//! Why a call or a connection failed.

use serde_json::Value;

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("'{0}' is not the address of a server; write one like http://127.0.0.1:8080")]
    NotAnAddress(String),
    #[error("cannot connect to {address}: {source}")]
    Connect { address: String, source: std::io::Error },
    #[error("the call failed: {0}")]
    Http(#[from] hyper::Error),
    #[error("the call could not be made: {0}")]
    Request(#[from] hyper::http::Error),
    #[error("the answer is not JSON: {0}")]
    NotJson(#[from] serde_json::Error),
    /// What the server said instead.
    #[error("the server refused with {status}: {body}")]
    Refused { status: u16, body: Value },
    #[error("the socket failed: {0}")]
    Socket(#[from] Box<tokio_tungstenite::tungstenite::Error>),
}

impl From<tokio_tungstenite::tungstenite::Error> for ClientError {
    fn from(error: tokio_tungstenite::tungstenite::Error) -> Self {
        Self::Socket(Box::new(error))
    }
}

impl ClientError {
    /// The protocol's code, where the server refused with one.
    pub fn code(&self) -> Option<&str> {
        match self {
            Self::Refused { body, .. } => body["error"]["code"].as_str(),
            _ => None,
        }
    }
}
