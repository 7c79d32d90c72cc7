//! Whose chats they are, and who somebody is.

use std::time::Duration;

use courant_client::SignedIn;
use courant_tests::chat::{connect, group, next, next_of, nothing_comes, send};
use courant_tests::home;
use courant_tests::raw::{RawSocket, connect_from};
use hyper::Method;
use serde_json::{Value, json};

use super::{address, bearer, refused, start};

/// Everything that can be asked about a chat over REST.
async fn cannot_get_at(who: &SignedIn, chat: &str, other: &SignedIn) {
    let at = |below: &str| format!("/api/v1/chats/{chat}{below}");
    let add = json!({"user_id": who.user_id, "action": "add", "role": "owner"});
    let remove = json!({"user_id": other.user_id, "action": "remove"});
    let message = json!({"client_message_id": "m-1", "content": "let me in"});
    for (method, path, body) in [
        (Method::GET, at(""), None),
        (Method::PATCH, at(""), Some(json!({"name": "mine"}))),
        (Method::GET, at("/members"), None),
        (Method::POST, at("/members"), Some(add)),
        (Method::POST, at("/members"), Some(remove)),
        (Method::GET, at("/messages?latest=10"), None),
        (Method::POST, at("/messages"), Some(message)),
        (Method::POST, at("/ack"), Some(json!({"sequence": 1}))),
    ] {
        let answer = refused(who, method.clone(), &path, body.as_ref()).await;
        assert_eq!(answer, (403, "NOT_A_MEMBER".to_owned()), "{method} {path}");
    }
}

/// Likewise over a socket.
async fn cannot_hear(socket: &mut courant_client::Socket, chat: &str) {
    assert_eq!(send(socket, chat, "m-2", "let me in").await["code"], "NOT_A_MEMBER");
    socket.send(&json!({"type": "sync_request", "chat_id": chat, "last_acked_sequence": 0})).await.unwrap();
    let answer = next_of(socket, "error").await;
    assert_eq!((&answer["code"], &answer["chat_id"]), (&json!("NOT_A_MEMBER"), &json!(chat)), "{answer}");
    socket.send(&json!({"type": "ack", "chat_id": chat, "sequence": 1})).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_and_those_who_were_removed_get_at_nothing() {
    let home = home!().with_shipped_pipelines();
    let mut courant = start(&home, &[]);
    let (ann, bob, eve) =
        (courant.person("Ann").await, courant.person("Bob").await, courant.person("Eve").await);
    let chat = group(&[&ann, &bob]).await;
    let (mut anns, mut bobs, mut eves) = (connect(&ann).await, connect(&bob).await, connect(&eve).await);
    assert_eq!(send(&mut anns, &chat, "m-1", "between us").await["type"], "ack");
    assert_eq!(next_of(&mut bobs, "message").await["content"], "between us");
    cannot_get_at(&eve, &chat, &bob).await;
    cannot_hear(&mut eves, &chat).await;

    let members = format!("/api/v1/chats/{chat}/members");
    ann.client.post(&members, &json!({"user_id": bob.user_id, "action": "remove"})).await.unwrap();
    next_of(&mut bobs, "membership_changed").await;
    cannot_get_at(&bob, &chat, &ann).await;
    cannot_hear(&mut bobs, &chat).await;
    assert!(bob.client.get("/api/v1/chats").await.unwrap()["chats"].as_array().unwrap().is_empty());
    let mut on_phone = connect(&ann).await;
    for n in 2..10 {
        assert_eq!(send(&mut anns, &chat, &format!("a-{n}"), "without Bob").await["type"], "ack");
    }
    for _ in 2..10 {
        next_of(&mut on_phone, "message").await;
    }
    nothing_comes(&mut bobs).await;
    nothing_comes(&mut eves).await;
    // An ack is not answered: whether one of a stranger counted is seen once they are let in.
    ann.client.post(&members, &json!({"user_id": eve.user_id, "action": "add"})).await.unwrap();
    let seen = eve.client.get(&format!("/api/v1/chats/{chat}")).await.unwrap();
    assert_eq!(seen["delivered_sequence"], 0, "{seen}");
}

/// Who sends and over which connection is known, and not to be said.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_speaks_for_another() {
    let home = home!().with_shipped_pipelines();
    let mut courant = start(&home, &[]);
    let (ann, eve) = (courant.person("Ann").await, courant.person("Eve").await);
    let chat = group(&[&eve, &ann]).await;
    let (mut anns, mut eves) = (ann.client.connect().await.unwrap(), connect(&eve).await);
    let welcome = next(&mut anns).await;
    let anns_connection = welcome["connection_id"].as_str().unwrap();
    let path = format!("/api/v1/chats/{chat}/messages");
    for (field, value) in [
        ("sender_id", json!(ann.user_id)),
        ("user_id", json!(ann.user_id)),
        ("connection_id", json!(anns_connection)),
        ("origin", json!(anns_connection)),
        ("sequence", json!(1)),
        ("message_id", json!("msg_00000000000000000000000000")),
    ] {
        let mut body = json!({"client_message_id": "m-1", "content": "I owe Eve a fortune"});
        body[field] = value;
        let over_rest = refused(&eve, Method::POST, &path, Some(&body)).await;
        assert_eq!(over_rest, (400, "BAD_REQUEST".to_owned()), "{field}");
        let (kind, to) = (json!("send_message"), json!(chat));
        let mut frame: Value = json!({"type": kind, "chat_id": to});
        frame.as_object_mut().unwrap().extend(body.as_object().unwrap().clone());
        eves.send(&frame).await.unwrap();
        assert_eq!(next_of(&mut eves, "error").await["code"], "BAD_FRAME", "{field}");
    }
    // A header of that name changes nothing: everybody else hears it, as Eve's.
    let mut stream = connect_from(1, address(&mut courant)).await.unwrap();
    let body = json!({"client_message_id": "m-2", "content": "hello"}).to_string();
    let headers = [
        ("authorization", &*bearer(&eve)),
        ("x-connection-id", anns_connection),
        ("origin-connection", anns_connection),
    ];
    let request = courant_tests::raw::request("POST", &path, &headers, &body);
    assert_eq!(courant_tests::raw::ask(&mut stream, &request).await.status, 201);
    for socket in [&mut anns, &mut eves] {
        assert_eq!(next_of(socket, "message").await["sender_id"], json!(eve.user_id));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_of_others_open_no_socket() {
    let home = home!().with_shipped_pipelines();
    let mut courant = start(&home, &[("COURANT_EDGE__ALLOWED_ORIGINS", r#"["https://chat.example"]"#)]);
    let ann = courant.person("Ann").await;
    let to = address(&mut courant);
    for (origin, expected) in [
        ("https://chat.example", None),
        ("https://evil.example", Some(403)),
        ("https://chat.example.evil.example", Some(403)),
        ("http://chat.example", Some(403)),
        ("null", Some(403)),
    ] {
        let headers = [("authorization", &*bearer(&ann)), ("origin", origin)];
        let opened = RawSocket::open(connect_from(1, to).await.unwrap(), &headers).await;
        assert_eq!(opened.err(), expected, "{origin}");
    }
    courant_tests::until("the socket that was left is gone", Duration::from_secs(20), || {
        (courant.metric("courant_ws_connections", "") == 0.0).then_some(())
    });
}
