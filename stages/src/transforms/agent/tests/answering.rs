//! What is answered, how, and what is not.

use courant_connectors::live::{Channel, Connection, Heard};
use courant_connectors::model::frames::read_deliveries;
use courant_connectors::model::tables::users;
use courant_connectors::store::ReadStore as _;
use courant_pipeline::Class;

use super::server::{EVENTS, Model, Say, status, words};
use super::*;
use crate::testing::{build, problem};
use courant_pipeline::{Services, StageError};

#[tokio::test]
async fn a_script_answers_where_the_agent_is_and_nowhere_else() {
    let scene = Scene::new(scripted()).await;
    let (here, elsewhere) = (scene.world.chat(&[ANN, AGENT]).await, scene.world.chat(&[ANN]).await);
    let records = vec![
        scene.say(&here, ANN, "some tea").await,
        scene.say(&elsewhere, ANN, "hello").await,
        scene.say(&here, ANN, "hello").await,
    ];
    assert_eq!(scene.run(records).await[1], "dropped: no-agent");
    assert_eq!(scene.answers(&here).await, ["green or black?", "you said: hello"]);
    assert!(scene.answers(&elsewhere).await.is_empty());
}

#[tokio::test]
async fn an_answer_carries_nothing_of_its_question_but_the_chat() {
    let scene = Scene::new(scripted()).await;
    let chat = scene.world.chat(&[ANN, AGENT]).await;
    let question = scene.say(&chat, ANN, "hello").await;
    let id = question_id(&question);
    let batch = scene.ask(vec![question]).await;
    let record = batch.records().next().unwrap();
    assert!(record.headers.is_empty(), "whoever asked gets the answer too: {:?}", record.headers);
    let Command::SendMessage(answer) = &commands::command(record).unwrap().0 else { panic!("no message") };
    assert_eq!(answer.client_message_id.as_str(), format!("{AGENT}/{id}"));
    assert_eq!(record.key.as_ref().unwrap().as_str(), chat.as_str());
}

#[tokio::test]
async fn agents_do_not_answer_each_other_and_old_or_odd_records_are_left() {
    let scene = Scene::new(scripted()).await;
    let chat = scene.world.chat(&[ANN, AGENT, "agent_other"]).await;
    let own = scene.say(&chat, AGENT, "mine").await;
    let other = scene.say(&chat, "agent_other", "theirs").await;
    let text = String::from_utf8(scene.say(&chat, ANN, "x").await.payload.to_json().to_vec()).unwrap();
    let edited = |from: &str, to: &str| Record::new(text.replace(from, to)).with_key(chat.as_str());
    let year = &text[text.find("event_time").unwrap() + 13..][..4];
    let records = vec![
        own,
        other,
        edited("MessagePersisted", "ChatRenamed"),
        edited("text/plain", "image/png"),
        edited(&format!("\"{year}-"), "\"2020-"),
        Record::new("{nope".to_owned()).with_key(chat.as_str()),
    ];
    let fates = scene.run(records).await;
    let dropped = ["from-agent", "from-agent", "not-a-message", "not-text", "too-old"];
    assert_eq!(fates[..5], dropped.map(|reason| format!("dropped: {reason}")));
    assert!(fates[5].starts_with("reject: read the event"), "{}", fates[5]);
}

#[tokio::test]
async fn a_model_is_told_what_was_said_and_each_answer_behind_its_question() {
    let model = Model::start(|number, _| words(&format!("answer number {number}"))).await;
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("key");
    std::fs::write(&key, "sesame\n").unwrap();
    let more = json!({"instructions": "be kind", "api_key_file": key, "options": {"temperature": 0.5}});
    let scene = Scene::new(model.params(&more)).await;
    let chat = scene.world.chat(&[ANN, AGENT]).await;
    let records = vec![scene.say(&chat, ANN, "one").await, scene.say(&chat, ANN, "two").await];
    scene.run(records).await;
    let third = scene.say(&chat, ANN, "three").await;
    scene.run(vec![third]).await;
    assert_eq!(scene.answers(&chat).await, ["answer number 0", "answer number 1", "answer number 2"]);
    let turn = |role: &str, content: &str| json!({"role": role, "content": content});
    let told = [
        turn("system", "be kind"),
        turn("user", "one"),
        turn("assistant", "answer number 0"),
        turn("user", "two"),
        turn("assistant", "answer number 1"),
        turn("user", "three"),
    ];
    let asked = model.asked();
    assert_eq!(asked[1]["messages"].as_array().unwrap()[..4], told[..4], "although it is not stored yet");
    let last = asked[2]["messages"].as_array().unwrap();
    assert_eq!((last.first(), last.last()), (told.first(), told.last()));
    assert_eq!(last.len(), told.len());
    assert_eq!((&asked[2]["model"], &asked[2]["stream"]), (&json!("small"), &json!(true)));
    assert_eq!((&asked[2]["max_tokens"], &asked[2]["temperature"]), (&json!(800), &json!(0.5)));
    let head = &model.heads()[0];
    assert!(head.starts_with("post /v1/chat/completions "), "{head}");
    assert!(head.contains("authorization: bearer sesame"), "{head}");
}

#[tokio::test]
async fn where_several_people_talk_their_names_are_told_and_history_is_bounded() {
    let model = Model::start(|_, _| words("well")).await;
    let scene = Scene::new(model.params(&json!({"history_bytes": "8 B"}))).await;
    let chat = scene.world.chat(&[ANN, BOB, AGENT]).await;
    scene.say(&chat, ANN, "long ago").await;
    scene.say(&chat, BOB, "hi all").await;
    let question = scene.say(&chat, ANN, "and you?").await;
    scene.run(vec![question]).await;
    let told = json!([{"role": "user", "content": "user_bob: hi all"}, {"role": "user", "content": "user_ann: and you?"}]);
    assert_eq!(model.asked()[0]["messages"], told);
}

#[tokio::test]
async fn a_server_that_misbehaves_is_bounded_and_quoted() {
    let part = |text: &str| format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"{text}\"}}}}]}}\n\n");
    let huge = format!("{EVENTS}{}", ": nothing at all\n".repeat(300_000));
    let cases: Vec<(&str, Say, &str)> = vec![
        (
            "busy",
            status("503 Service Unavailable", ""),
            "retry: ask the model: the model server answered 503",
        ),
        (
            "no",
            status("401 Unauthorized", ""),
            "reject: ask the model: the model server answered 401 Unauthorized: nope",
        ),
        (
            "away",
            status("302 Found", "location: http://elsewhere.example/\r\n"),
            "reject: ask the model: the model server answered 302 Found; redirects are not followed",
        ),
        (
            "garbage",
            Say::Raw("nonsense\r\n\r\n".into()),
            "retry: ask the model: http://127.0.0.1 cannot be reached",
        ),
        (
            "no json",
            Say::Raw(format!("{EVENTS}data: <html>\n\n")),
            "retry: ask the model: the model server sends no completion: <html>",
        ),
        (
            "error",
            Say::Raw(format!("{EVENTS}data: {{\"error\":{{\"message\":\"overloaded\"}}}}\n\n")),
            "retry: ask the model: the model server failed while it answered",
        ),
        (
            "cut",
            Say::Raw(format!("{EVENTS}{}", part("half"))),
            "retry: ask the model: the answer broke off before its end",
        ),
        ("empty", words(""), "reject: ask the model: the answer is empty"),
        (
            "huge",
            Say::Raw(huge),
            "retry: ask the model: the answer of http://127.0.0.1 has more than 4194304 bytes",
        ),
        (
            "silent",
            Say::Hang(format!("{EVENTS}{}", part("half"))),
            "retry: ask the model: the model server has been silent for 200ms",
        ),
        (
            "deaf",
            Say::Hang(String::new()),
            "retry: ask the model: http://127.0.0.1 did not answer within 200ms",
        ),
    ];
    let answers: std::collections::HashMap<String, Say> =
        cases.iter().map(|(name, say, _)| ((*name).to_owned(), say.clone())).collect();
    let model = Model::start(move |_, body| {
        let asked = body["messages"].as_array().unwrap().last().unwrap()["content"].as_str().unwrap();
        answers[asked].clone()
    })
    .await;
    let scene = Scene::new(model.params(&json!({"silence": "200ms"}))).await;
    for (name, _, expected) in cases {
        let chat = scene.world.chat(&[ANN, AGENT]).await;
        let question = scene.say(&chat, ANN, name).await;
        let fate = scene.run(vec![question]).await.remove(0);
        assert!(fate.starts_with(expected), "{name}: {fate}");
        assert!(scene.answers(&chat).await.is_empty());
    }
}

#[tokio::test]
async fn a_server_that_answers_in_one_piece_or_too_much_is_understood() {
    let model = Model::start(|number, _| match number {
        0 => {
            let body = r#"{"choices":[{"message":{"content":"all at once"},"finish_reason":"stop"}]}"#;
            let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n";
            Say::Raw(format!("{head}content-length: {}\r\n\r\n{body}", body.len()))
        }
        _ => words(&"é ".repeat(4000)),
    })
    .await;
    let scene = Scene::new(model.params(&json!({}))).await;
    let chat = scene.world.chat(&[ANN, AGENT]).await;
    for content in ["one", "two"] {
        let question = scene.say(&chat, ANN, content).await;
        scene.run(vec![question]).await;
    }
    let answers = scene.answers(&chat).await;
    assert_eq!(answers[0], "all at once");
    assert!(answers[1].len() <= 4096 && answers[1].len() > 4080 && answers[1].ends_with('…'));
}

#[tokio::test]
async fn a_server_that_asks_for_a_pause_gets_it_and_the_chat_keeps_its_order() {
    let model = Model::start(|_, _| status("429 Too Many Requests", "retry-after: 3600\r\n")).await;
    let scene = Scene::new(model.params(&json!({}))).await;
    let chat = scene.world.chat(&[ANN, AGENT]).await;
    let records = vec![scene.say(&chat, ANN, "one").await, scene.say(&chat, ANN, "two").await];
    let fates = scene.run(records.clone()).await;
    assert!(fates[0].starts_with("retry: ") && fates[1] == "held", "{fates:?}");
    let fates = scene.run(records).await;
    assert!(fates[0].contains("asked to be left alone for"), "{fates:?}");
    assert_eq!(model.asked().len(), 1);
}

#[tokio::test]
async fn those_who_are_connected_see_an_answer_grow() {
    let model = Model::start(|number, _| match number {
        0 => words("one two three"),
        _ => status("500 Internal Server Error", ""),
    })
    .await;
    let scene = Scene::new(model.params(&json!({"show_every": "1ms"}))).await;
    let chat = scene.world.chat(&[ANN, AGENT]).await;
    let live = &scene.world.connected.live;
    let connection = Connection {
        id: "conn_1".into(),
        user: ANN.into(),
        device: "phone".into(),
        gateway: "gw_1".into(),
        connected_at: std::time::SystemTime::UNIX_EPOCH,
    };
    live.register(&connection).await.unwrap();
    let mut listener = live.subscribe(&[Channel::deliver(&"gw_1".into())]).await.unwrap();
    let (first, second) = (scene.say(&chat, ANN, "a").await, scene.say(&chat, ANN, "b").await);
    let asked = question_id(&first);
    scene.run(vec![first]).await;
    scene.run(vec![second]).await;
    let mut shown = Vec::new();
    loop {
        let Heard::Message { payload, .. } = listener.next().await.unwrap() else { panic!("missed some") };
        for delivery in read_deliveries(&payload) {
            shown.push(serde_json::from_slice::<Value>(&delivery.unwrap().frame).unwrap());
        }
        if shown.last().unwrap()["status"] == "stopped" {
            break;
        }
    }
    assert_eq!(
        shown[0],
        json!({"type": "reply", "chat_id": chat, "sender_id": AGENT, "reply_to": asked, "status": "writing",
            "content": "", "content_type": "text/plain"})
    );
    let of_first: Vec<&str> = shown
        .iter()
        .filter(|frame| frame["reply_to"] == asked)
        .map(|frame| frame["content"].as_str().unwrap())
        .collect();
    assert!(of_first.len() > 2, "{of_first:?}");
    assert!(of_first.iter().all(|text| "one two three".starts_with(text)), "{of_first:?}");
    assert!(of_first.is_sorted_by_key(|text| text.len()), "{of_first:?}");
}

#[tokio::test]
async fn an_apology_is_another_message_than_the_answer() {
    let mut params = scripted();
    params["apology"] = json!("I could not answer.");
    let scene = Scene::new(params).await;
    let chat = scene.world.chat(&[ANN, AGENT]).await;
    let question = scene.say(&chat, ANN, "hello").await;
    let gave_up = StageError::retry("ask", "down");
    let apology = scene.agent.instead(&question, &gave_up).unwrap();
    // Given up twice, as after a crash.
    scene.store(vec![apology.clone()]).await;
    scene.store(vec![apology]).await;
    scene.run(vec![question.clone()]).await;
    assert_eq!(scene.answers(&chat).await, ["I could not answer.", "you said: hello"]);
    assert!(Scene::new(scripted()).await.agent.instead(&question, &gave_up).is_none(), "only if configured");
}

#[tokio::test]
async fn the_agent_is_a_user_with_the_name_it_is_given() {
    let scene = Scene::new(scripted()).await;
    let named = async || users::get(&*scene.world.store, &AGENT.into()).await.unwrap().unwrap().display_name;
    assert_eq!(named().await, "helper");
    let mut params = scripted();
    params["display_name"] = json!("The Helper");
    scene.world.stage(&SPEC, with_agent(params)).await;
    assert_eq!(named().await, "The Helper");
    let item = scene.world.store.get(users::existence_lookup(&AGENT.into())).await.unwrap().unwrap();
    assert!(users::is_user(&item), "so that it can be added to chats");
}

#[test]
fn wrong_parameters_are_refused() {
    let key = |params: Value| problem(&SPEC, with_agent(params)).key;
    let model = |more: Value| {
        let mut params = json!({"base_url": "http://x/v1", "model": "m"});
        params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        params
    };
    assert!(build(&SPEC, with_agent(model(json!({}))), &Services::default()).is_ok());
    assert_eq!(problem(&SPEC, json!({"agent": "user_1", "responder": "scripted"})).key, "agent");
    assert_eq!(key(json!({"model": "m"})), "base_url");
    assert_eq!(key(json!({"base_url": "x.org", "model": "m"})), "base_url");
    assert_eq!(key(json!({"base_url": "http://x"})), "model");
    assert_eq!(key(model(json!({"options": {"stream": false}}))), "options.stream");
    assert_eq!(key(model(json!({"script": [{"say": "x"}]}))), "script");
    assert_eq!(key(model(json!({"max_age": "7d"}))), "max_age");
    assert_eq!(key(model(json!({"max_answer": "5 KiB"}))), "max_answer");
    assert_eq!(key(model(json!({"apology": ""}))), "apology");
    assert_eq!(key(json!({"responder": "scripted", "model": "m"})), "model");
}

#[tokio::test]
async fn a_missing_key_is_said_when_it_opens() {
    let params =
        with_agent(json!({"base_url": "http://x", "model": "m", "api_key_env": "COURANT_TEST_NO_KEY"}));
    let error = crate::testing::stage(&SPEC, params).open().await.unwrap_err();
    assert_eq!(error.class, Class::Fatal);
    assert!(error.to_string().contains("`COURANT_TEST_NO_KEY`"), "{error}");
}

#[tokio::test]
async fn a_server_that_repeats_the_key_does_not_make_it_known() {
    let model = Model::start(|number, _| match number {
        0 => Say::Raw(
            "HTTP/1.1 401 Unauthorized\r\ncontent-length: 15\r\nconnection: close\r\n\r\nbad key: sesame"
                .to_owned(),
        ),
        _ => Say::Raw(format!("{EVENTS}data: {{\"error\": \"sesame is no key\"}}\n\n")),
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("key");
    std::fs::write(&key, "sesame\n").unwrap();
    let scene = Scene::new(model.params(&json!({"api_key_file": key}))).await;
    let chat = scene.world.chat(&[ANN, AGENT]).await;
    let question = scene.say(&chat, ANN, "one").await;
    for said in ["bad key: [key]", "[key] is no key"] {
        let fates = scene.run(vec![question.clone()]).await;
        assert!(fates[0].contains(said) && !fates[0].contains("sesame"), "{fates:?}");
    }
}
