//! Clients that mean harm, against the real process on the shipped pipelines: they get the code that the protocol says,
//! cost a bounded amount of memory, and nobody else notices.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod crowds;
mod frames;
mod limits;
mod members;
mod settings;
mod slow;
mod tokens;

use std::net::SocketAddr;

use courant_client::{ClientError, SignedIn};
use courant_tests::raw::{RawSocket, connect_from};
use courant_tests::{Courant, Home};
use hyper::Method;
use serde_json::Value;

/// Starts the shipped pipelines with some settings otherwise, as in the environment.
fn start(home: &Home, settings: &[(&str, &str)]) -> Courant {
    let mut command = home.command(&["run"]);
    command.envs(settings.iter().copied());
    let mut courant = Courant::spawn(command);
    courant.wait_ready();
    courant
}

fn address(courant: &mut Courant) -> SocketAddr {
    courant.address().unwrap()
}

/// Status and code of a call that is refused. One that is not has no code: the test that compares says which it is.
async fn refused(who: &SignedIn, method: Method, path: &str, body: Option<&Value>) -> (u16, String) {
    let answer = who.client.call(method, path, body).await.unwrap();
    (answer.status.as_u16(), answer.body["error"]["code"].as_str().unwrap_or_default().to_owned())
}

/// The same of a refused socket.
fn refused_socket(error: Option<ClientError>) -> (u16, String) {
    match error {
        None => (101, String::new()),
        Some(ClientError::Refused { status, body }) => {
            (status, body["error"]["code"].as_str().unwrap_or_default().to_owned())
        }
        Some(other) => panic!("not refused: {other:?}"),
    }
}

fn bearer(who: &SignedIn) -> String {
    format!("Bearer {}", who.client.token().unwrap())
}

/// A socket whose every byte is the test's; it has been welcomed.
async fn raw_socket(courant: &mut Courant, who: &SignedIn) -> RawSocket {
    let stream = connect_from(1, address(courant)).await.unwrap();
    let mut socket = RawSocket::open(stream, &[("authorization", &bearer(who))]).await.unwrap();
    assert_eq!(socket.next_json().await["type"], "welcome");
    socket
}
