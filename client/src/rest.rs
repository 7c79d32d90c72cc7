//! REST calls, each on a connection of its own.

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::{Method, Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;

use crate::error::ClientError;
use crate::socket::Socket;

/// Calls one server, as nobody or as somebody who signed in.
#[derive(Debug, Clone)]
pub struct Client {
    /// `host:port`.
    address: String,
    token: Option<String>,
}

#[derive(Debug, Clone)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: hyper::HeaderMap,
    /// Null if there is none.
    pub body: Value,
}

/// What signing in gave.
#[derive(Debug, Clone)]
pub struct SignedIn {
    pub client: Client,
    pub user_id: String,
    pub device_id: String,
    pub session_id: String,
    pub refresh_token: String,
}

impl Client {
    /// `http://127.0.0.1:8080`, or without the scheme.
    pub fn new(url: &str) -> Result<Self, ClientError> {
        let address = url.strip_prefix("http://").unwrap_or(url).trim_end_matches('/');
        if address.is_empty() || address.contains('/') || !address.contains(':') {
            return Err(ClientError::NotAnAddress(url.to_owned()));
        }
        Ok(Self { address: address.to_owned(), token: None })
    }

    #[must_use]
    pub fn with_token(&self, access_token: &str) -> Self {
        Self { address: self.address.clone(), token: Some(access_token.to_owned()) }
    }

    pub fn token(&self) -> Option<&str> {
        self.token.as_deref()
    }

    pub fn address(&self) -> &str {
        &self.address
    }

    /// One call, whatever its answer.
    pub async fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Answer, ClientError> {
        let (status, headers, bytes) = self.send(method, path, body).await?;
        let body = if bytes.is_empty() { Value::Null } else { serde_json::from_slice(&bytes)? };
        Ok(Answer { status, headers, body })
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<(StatusCode, hyper::HeaderMap, Bytes), ClientError> {
        let failed = |source| ClientError::Connect { address: self.address.clone(), source };
        let stream = TcpStream::connect(&self.address).await.map_err(failed)?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        let serving = tokio::spawn(connection);
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, &self.address)
            .header(header::CONNECTION, "close");
        if let Some(token) = &self.token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        if body.is_some() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        let body = body.map(|body| Bytes::from(body.to_string())).unwrap_or_default();
        let response = sender.send_request(request.body(Full::new(body))?).await?;
        let (status, headers) = (response.status(), response.headers().clone());
        let bytes = response.into_body().collect().await?.to_bytes();
        serving.abort();
        Ok((status, headers, bytes))
    }

    /// One call that must succeed; its body.
    pub async fn ask(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value, ClientError> {
        let answer = self.call(method, path, body).await?;
        if answer.status.is_success() {
            Ok(answer.body)
        } else {
            Err(ClientError::Refused { status: answer.status.as_u16(), body: answer.body })
        }
    }

    /// What a path answers that is not JSON, such as metrics.
    pub async fn text(&self, path: &str) -> Result<String, ClientError> {
        let (_, _, bytes) = self.send(Method::GET, path, None).await?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    pub async fn get(&self, path: &str) -> Result<Value, ClientError> {
        self.ask(Method::GET, path, None).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Result<Value, ClientError> {
        self.ask(Method::POST, path, Some(body)).await
    }

    /// Registers somebody, with the code verified if the server tells it, and signs them in.
    pub async fn sign_up(&self, phone_number: &str, display_name: &str) -> Result<SignedIn, ClientError> {
        let password = "correct horse battery staple";
        let person =
            json!({"phone_number": phone_number, "display_name": display_name, "password": password});
        let registered = self.post("/api/v1/auth/register", &person).await?;
        if let Some(code) = registered["code"].as_str() {
            let verify = json!({"phone_number": phone_number, "code": code});
            self.post("/api/v1/auth/verify", &verify).await?;
        }
        self.sign_in(phone_number, password).await
    }

    pub async fn sign_in(&self, phone_number: &str, password: &str) -> Result<SignedIn, ClientError> {
        let login = json!({"phone_number": phone_number, "password": password});
        let told = self.post("/api/v1/auth/login", &login).await?;
        let text = |name: &str| told[name].as_str().unwrap_or_default().to_owned();
        Ok(SignedIn {
            client: self.with_token(&text("access_token")),
            user_id: text("user_id"),
            device_id: text("device_id"),
            session_id: text("session_id"),
            refresh_token: text("refresh_token"),
        })
    }

    /// Connects the socket of whoever signed in.
    pub async fn connect(&self) -> Result<Socket, ClientError> {
        Socket::connect(self).await
    }
}
