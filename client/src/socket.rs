//! The socket: frames of JSON both ways.

use bytes::Bytes;
use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::handshake::client::Response;
use tokio_tungstenite::tungstenite::http::{HeaderValue, header};
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{WebSocketStream, client_async_with_config};

use crate::error::ClientError;
use crate::rest::Client;

type Stream = WebSocketStream<TcpStream>;

/// A connected client.
pub struct Socket {
    sender: SocketSender,
    frames: SplitStream<Stream>,
}

/// The sending half of a socket.
pub struct SocketSender(SplitSink<Stream, Message>);

/// What came over the socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Heard {
    /// A frame's text.
    Frame(Bytes),
    /// The server closed, with its code; none if the connection just ended.
    Closed(Option<u16>),
}

impl Socket {
    pub(crate) async fn connect(client: &Client) -> Result<Self, ClientError> {
        Ok(Self::open(client).await?.0)
    }

    /// The socket and what the server answered to the upgrade. A refused upgrade is
    /// [`ClientError::Refused`] with its status.
    pub async fn open(client: &Client) -> Result<(Self, Response), ClientError> {
        let address = client.address();
        let failed = |source| ClientError::Connect { address: address.to_owned(), source };
        let stream = TcpStream::connect(address).await.map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        let mut request = format!("ws://{address}/ws").into_client_request()?;
        if let Some(token) = client.token() {
            let bearer = HeaderValue::from_str(&format!("Bearer {token}")).map_err(|_| {
                ClientError::NotAnAddress("the token has characters no header can have".into())
            })?;
            request.headers_mut().insert(header::AUTHORIZATION, bearer);
        }
        // The default of 128 KiB each adds up where thousands are connected.
        let config = WebSocketConfig::default().read_buffer_size(8 * 1024);
        let (stream, response) = match client_async_with_config(request, stream, Some(config)).await {
            Ok(connected) => connected,
            Err(Error::Http(response)) => {
                let body = response.body().as_deref().unwrap_or_default();
                let body = serde_json::from_slice(body).unwrap_or(Value::Null);
                return Err(ClientError::Refused { status: response.status().as_u16(), body });
            }
            Err(error) => return Err(error.into()),
        };
        let (sink, frames) = stream.split();
        Ok((Self { sender: SocketSender(sink), frames }, response))
    }

    /// Waits for the next frame, answering pings by itself.
    pub async fn next(&mut self) -> Heard {
        loop {
            match self.frames.next().await {
                Some(Ok(Message::Text(text))) => return Heard::Frame(text.into()),
                Some(Ok(Message::Close(close))) => {
                    return Heard::Closed(close.map(|frame| frame.code.into()));
                }
                Some(Ok(_)) => {}
                Some(Err(_)) | None => return Heard::Closed(None),
            }
        }
    }

    /// The next frame as JSON; `None` once closed.
    pub async fn next_json(&mut self) -> Option<Value> {
        match self.next().await {
            Heard::Frame(text) => serde_json::from_slice(&text).ok(),
            Heard::Closed(_) => None,
        }
    }

    pub async fn send(&mut self, frame: &Value) -> Result<(), ClientError> {
        self.sender.send(frame.to_string()).await
    }

    pub async fn send_message(
        &mut self,
        chat_id: &str,
        client_message_id: &str,
        content: &str,
    ) -> Result<(), ClientError> {
        let frame = json!({
            "type": "send_message", "client_message_id": client_message_id, "chat_id": chat_id, "content": content,
        });
        self.send(&frame).await
    }

    /// Both halves, for tasks of their own.
    pub fn split(self) -> (SocketSender, impl futures::Stream<Item = Heard> + Send + Unpin) {
        let heard = self.frames.filter_map(|message| {
            std::future::ready(match message {
                Ok(Message::Text(text)) => Some(Heard::Frame(text.into())),
                Ok(Message::Close(close)) => Some(Heard::Closed(close.map(|frame| frame.code.into()))),
                Ok(_) => None,
                Err(_) => Some(Heard::Closed(None)),
            })
        });
        (self.sender, heard)
    }
}

impl SocketSender {
    pub async fn send(&mut self, text: String) -> Result<(), ClientError> {
        Ok(self.0.send(Message::text(text)).await?)
    }

    /// Several frames with one flush.
    pub async fn send_all(&mut self, texts: impl IntoIterator<Item = String>) -> Result<(), ClientError> {
        for text in texts {
            self.0.feed(Message::text(text)).await?;
        }
        Ok(self.0.flush().await?)
    }

    /// Sends anything, also what no client should.
    pub async fn send_raw(&mut self, message: Message) -> Result<(), ClientError> {
        Ok(self.0.send(message).await?)
    }
}
