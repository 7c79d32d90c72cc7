//! What clients say, as a socket reads it.

use proptest::prelude::*;

use super::*;

fn parsed(text: &str) -> Request {
    parse(text.as_bytes())
}

fn refused(text: &str) -> (Option<String>, Code, String) {
    match parsed(text) {
        Request::Refuse { client_message_id, refusal } => {
            (client_message_id.map(|id| id.to_string()), refusal.code, refusal.message)
        }
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn a_frame_is_understood_wherever_its_type_is() {
    let expected = Request::Send(Send {
        client_message_id: "c-1".into(),
        chat_id: "chat_1".into(),
        content: "a \"b\"\u{e9}".into(),
        content_type: "text/plain".into(),
    });
    let fields = r#""client_message_id":"c-1","chat_id":"chat_1","content":"a \"b\"\u00e9""#;
    assert_eq!(parsed(&format!(r#"{{"type":"send_message",{fields}}}"#)), expected);
    assert_eq!(parsed(&format!(r#"{{{fields},"type":"send_message"}}"#)), expected);
    assert_eq!(parsed(r#"{"type":"heartbeat"}"#), Request::Heartbeat);
    let ack = Request::Ack { chat_id: "chat_1".into(), sequence: 7 };
    assert_eq!(parsed(r#"{"type":"ack","chat_id":"chat_1","sequence":7}"#), ack);
    let sync = |limit| Request::Sync { chat_id: "chat_1".into(), after: 0, limit };
    let base = r#"{"type":"sync_request","chat_id":"chat_1","last_acked_sequence":0"#;
    assert_eq!(parsed(&format!("{base}}}")), sync(100));
    assert_eq!(parsed(&format!("{base},\"limit\":5000}}")), sync(1000), "has_more tells of the rest");
}

#[test]
fn typos_are_seen_and_the_socket_lives_on() {
    let cases = [
        (r#"{"type":"heartbeat","n":1}"#, "unknown field `n`"),
        (r#"{"n":1,"type":"heartbeat"}"#, "unknown field `n`"),
        (r#"{"type":"heratbeat"}"#, "unknown variant `heratbeat`"),
        (r#"{"type":{"heartbeat":null}}"#, "invalid type: map"),
        (r#"{"type":"ack","chat_id":"chat_1"}"#, "missing field `sequence`"),
        (r#"{"type":"ack","chat_id":"chat_1","sequence":-1}"#, "invalid value"),
        (r#"{"type":"ack","chat_id":"chat_1","sequence":0}"#, "begin at 1"),
        (r#"{"type":"ack","chat_id":"","sequence":1}"#, "chat_id"),
        (r#"{"type":"ack","type":"ack","chat_id":"chat_1","sequence":1}"#, "type"),
        (r"{}", "missing field `type`"),
        (r"[1]", "an object with a 'type'"),
        (r#""heartbeat""#, "an object with a 'type'"),
    ];
    for (text, expected) in cases {
        let (_, code, message) = refused(text);
        assert!(code == Code::BadFrame && message.contains(expected), "{text}: {message}");
    }
}

#[test]
fn a_refused_message_is_named_where_it_has_a_name() {
    let send = |id: &str, content: &str| {
        format!(
            r#"{{"type":"send_message","client_message_id":"{id}","chat_id":"chat_1","content":"{content}"}}"#
        )
    };
    assert!(matches!(parsed(&send("c", &"x".repeat(4096))), Request::Send(_)));
    let escaped = parsed(&send("c", &"\\u0001".repeat(4096)));
    assert!(matches!(escaped, Request::Send(send) if send.content.len() == 4096), "bytes of content count");
    let (id, code, _) = refused(&send("c", &"\u{e9}".repeat(2049)));
    assert_eq!((id.as_deref(), code), (Some("c"), Code::TooLarge), "bytes count, not characters");
    assert_eq!(refused(&send("c", "")).0.as_deref(), Some("c"));
    for id in ["", "\u{e9}", &"i".repeat(129)] {
        let (named, code, _) = refused(&send(id, "x"));
        assert_eq!((named.as_deref(), code), (Some(id), Code::BadFrame), "as it was given");
    }
    let rest = r#""chat_id":"chat_1","content":"x""#;
    for (id, fields) in [
        (r#""c""#, r#""chat_id":"chat_1","content":"x","contnet_type":"text/plain""#),
        (r#""c""#, r#""chat_id":"chat_1""#),
        (r#""c""#, r#""chat_id":7,"content":"x""#),
        (r#""c""#, r#""chat_id":"chat_1","content":["x"]"#),
        (r#""\u0063""#, r#""content":"x""#),
    ] {
        for frame in [
            format!(r#"{{"type":"send_message","client_message_id":{id},{fields}}}"#),
            format!(r#"{{{fields},"type":"send_message","client_message_id":{id}}}"#),
        ] {
            let (named, code, _) = refused(&frame);
            assert_eq!((named.as_deref(), code), (Some("c"), Code::BadFrame), "{frame}");
        }
    }
    for id in ["7", "null", r#"["c"]"#] {
        let frame = format!(r#"{{"type":"send_message","client_message_id":{id},{rest}}}"#);
        assert_eq!(refused(&frame).0, None, "{frame}");
    }
}

#[test]
fn content_has_a_media_type_as_everywhere() {
    let send = |content_type: &str| {
        format!(
            r#"{{"type":"send_message","client_message_id":"c","chat_id":"chat_1","content":"x","content_type":"{content_type}"}}"#
        )
    };
    assert!(matches!(parsed(&send("text/plain; charset=utf-8")), Request::Send(_)));
    for bad in ["", "text", "/plain", "text/", "text/pl ain", &"x/".repeat(65)] {
        let (id, code, message) = refused(&send(bad));
        assert_eq!((id.as_deref(), code), (Some("c"), Code::BadFrame), "{bad}");
        assert!(message.contains("media type"), "{message}");
    }
}

#[test]
fn what_is_not_json_ends_the_socket() {
    for text in [
        &b"nope"[..],
        b"",
        b"{\"type\":\"heartbeat\"",
        b"{\"type\":\"x\"} {",
        b"\xff",
        b"{\"type\":\"\xff\"}",
    ] {
        assert_eq!(parse(text), Request::NotJson, "{}", String::from_utf8_lossy(text));
    }
    let deep = "[".repeat(100_000);
    assert_eq!(parse(deep.as_bytes()), Request::NotJson, "without an end to the stack");
}

proptest! {
    #[test]
    fn random_text_never_panics(text in "[\\[\\]{}:,\"a-z0-9_ ]{0,60}") {
        let _ = parse(text.as_bytes());
    }

    /// The fast way and the one for any order say the same.
    #[test]
    fn both_ways_agree(
        kind in "send_message|ack|sync_request|heartbeat|other",
        fields in proptest::collection::vec(
            ("client_message_id|chat_id|content|content_type|sequence|last_acked_sequence|limit|x", "\"[a-z]{0,3}\"|[0-9]{1,2}|null"),
            0..5,
        ),
    ) {
        let fields: String = fields.iter().map(|(name, value)| format!(r#""{name}":{value},"#)).collect();
        let first = format!(r#"{{"type":"{kind}",{fields}"#);
        let first = format!("{}}}", first.trim_end_matches(','));
        let last = format!(r#"{{{fields}"type":"{kind}"}}"#);
        match (parse(first.as_bytes()), parse(last.as_bytes())) {
            // Which of several mistakes is told depends on the order.
            (Request::Refuse { .. }, Request::Refuse { .. }) => {}
            (first, last) => prop_assert_eq!(first, last),
        }
    }
}
