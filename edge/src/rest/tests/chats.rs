//! Chats and their members.

use courant_connectors::model::tables::chat_memberships::{self, Membership, Role};
use courant_connectors::model::{ChatId, Timestamp};
use serde_json::{Value, json};
use warp::http::Method;

use super::world::{PASSWORD, World, phone_number};

#[tokio::test]
async fn a_chat_is_made_with_its_members() {
    let world = World::new().await;
    let (ada, bob) = (world.person(1).await, world.person(2).await);
    let group = json!({"chat_type": "group", "name": "Engines", "members": [bob.user_id]});
    let made = world.post("/chats", &ada, group).await;
    assert_eq!((made.status, &made.body["name"]), (201, &json!("Engines")));
    let roles: Vec<_> =
        made.body["members"].as_array().unwrap().iter().map(|member| &member["role"]).collect();
    assert_eq!(roles, ["owner", "member"]);
    let direct = world.post("/chats", &ada, json!({"chat_type": "direct", "members": [bob.user_id]})).await;
    assert_eq!((direct.status, &direct.body["name"]), (201, &Value::Null));
    let seen = world.get(&format!("/chats/{}", made.text("chat_id")), &bob).await;
    assert_eq!((&seen.body["role"], &seen.body["chat_type"]), (&json!("member"), &json!("group")));
}

#[tokio::test]
async fn members_are_others_each_once_and_not_too_many() {
    let world = World::new().await;
    let (ada, bob) = (world.person(1).await, world.person(2).await);
    let many = |count: usize| -> Vec<String> { (0..count).map(|at| format!("user_{at:026}")).collect() };
    for bad in [
        json!({"chat_type": "direct", "members": []}),
        json!({"chat_type": "direct", "members": [bob.user_id, "user_3"]}),
        json!({"chat_type": "direct", "name": "us", "members": [bob.user_id]}),
        json!({"chat_type": "direct", "members": [ada.user_id]}),
        json!({"chat_type": "group", "members": [bob.user_id, bob.user_id]}),
        json!({"chat_type": "direct", "members": [ada.user_id, ada.user_id]}),
        json!({"chat_type": "group", "members": many(1000)}),
        json!({"chat_type": "group", "members": ["bob"]}),
        json!({"chat_type": "group", "name": "", "members": []}),
        json!({"chat_type": "group"}),
        json!({"chat_type": "channel", "members": []}),
    ] {
        let answer = world.post("/chats", &ada, bad.clone()).await;
        assert_eq!(answer.refusal(), (400, "BAD_REQUEST"), "{bad}");
    }
    for (chat_type, name) in [("group", Some("Engines")), ("direct", None)] {
        let oneself_too =
            json!({"chat_type": chat_type, "name": name, "members": [ada.user_id, bob.user_id]});
        let made = world.post("/chats", &ada, oneself_too).await;
        let members = made.body["members"].as_array().unwrap();
        let members: Vec<_> = members.iter().map(|member| (&member["user_id"], &member["role"])).collect();
        let (own, other) = (json!(ada.user_id), json!(bob.user_id));
        assert_eq!(members, [(&own, &json!("owner")), (&other, &json!("member"))], "each once");
    }
    let largest = world.post("/chats", &ada, json!({"chat_type": "group", "members": many(999)})).await;
    assert_eq!(largest.status, 201, "{largest:?}");
    let (chat, mut seen, mut cursor) = (largest.text("chat_id"), 0, String::new());
    loop {
        let page = world.get(&format!("/chats/{chat}/members?limit=400{cursor}"), &ada).await;
        seen += page.body["members"].as_array().unwrap().len();
        let Some(next) = page.body["next"].as_str() else { break };
        cursor = format!("&cursor={next}");
    }
    assert_eq!(seen, 1000);
}

#[tokio::test]
async fn a_chat_is_for_its_members() {
    let world = World::new().await;
    let (ada, eve) = (world.person(1).await, world.person(2).await);
    let chat = world.group(&ada, &[]).await;
    for below in ["", "/members", "/messages?latest=1"] {
        let strange = world.get(&format!("/chats/{chat}{below}"), &eve).await;
        assert_eq!(strange.refusal(), (403, "NOT_A_MEMBER"), "{below}");
        let nowhere = world.get(&format!("/chats/chat_0{below}"), &eve).await;
        assert_eq!(nowhere.refusal(), (404, "NOT_FOUND"), "{below}");
        assert_eq!(world.get(&format!("/chats/{chat}{below}"), &ada).await.status, 200, "{below}");
    }
}

#[tokio::test]
async fn ones_chats_come_with_how_far_they_are() {
    let world = World::new().await;
    let (ada, bob) = (world.person(1).await, world.person(2).await);
    let chats =
        [world.group(&ada, &[&bob]).await, world.group(&bob, &[&ada]).await, world.group(&ada, &[]).await];
    for text in ["one", "two"] {
        let message = json!({"client_message_id": text, "content": text});
        world.post(&format!("/chats/{}/messages", chats[0]), &ada, message).await;
    }
    let acked = world.post(&format!("/chats/{}/ack", chats[0]), &bob, json!({"sequence": 1})).await;
    assert_eq!(acked.status, 204);
    // a group whose making has only begun
    let begun = Membership {
        chat_id: ChatId::generate(),
        user_id: bob.user_id.clone(),
        role: Role::Member,
        joined_at: Timestamp::from_unix_millis(0),
        muted_until: None,
    };
    chat_memberships::add(&*world.engine, &begun).await.unwrap();

    let listed = world.get("/chats", &bob).await.body;
    assert_eq!(listed["next"], Value::Null);
    let listed = listed["chats"].as_array().unwrap();
    assert_eq!(listed.len(), 2, "hers alone and what is not yet there are not in it: {listed:?}");
    let first = listed.iter().find(|chat| chat["chat_id"] == *chats[0]).unwrap();
    assert_eq!((&first["role"], &first["last_sequence"]), (&json!("member"), &json!(2)));
    assert_eq!((&first["delivered_sequence"], &first["read_sequence"]), (&json!(1), &json!(0)));
    let second = listed.iter().find(|chat| chat["chat_id"] == *chats[1]).unwrap();
    assert_eq!((&second["role"], &second["last_sequence"]), (&json!("owner"), &json!(0)));

    let mut seen = Vec::new();
    let mut path = "/chats?limit=1".to_owned();
    loop {
        let page = world.get(&path, &ada).await.body;
        seen.extend(
            page["chats"].as_array().unwrap().iter().map(|chat| chat["chat_id"].as_str().unwrap().to_owned()),
        );
        let Some(next) = page["next"].as_str() else { break };
        path = format!("/chats?limit=1&cursor={next}");
    }
    seen.sort();
    let mut expected = chats.to_vec();
    expected.sort();
    assert_eq!(seen, expected);
    for bad in ["limit=0", "limit=101", "limit=x", "cursor=user_1", "cursor=", "page=2", "limit=1&limit=2"] {
        let answer = world.get(&format!("/chats?{bad}"), &ada).await;
        assert_eq!(answer.refusal(), (400, "BAD_REQUEST"), "{bad}");
    }
}

/// `next` leads somewhere or is null.
#[tokio::test]
async fn a_full_page_that_is_the_last_says_so() {
    let world = World::new().await;
    let (ada, bob) = (world.person(1).await, world.person(2).await);
    let chat = world.group(&ada, &[&bob]).await;
    world.group(&ada, &[]).await;
    let login = json!({"phone_number": phone_number(1), "password": PASSWORD});
    world.post_as_nobody("/auth/login", login).await;
    for id in ["c-1", "c-2"] {
        let message = json!({"client_message_id": id, "content": "x"});
        world.post(&format!("/chats/{chat}/messages"), &ada, message).await;
    }
    for (path, items) in [
        ("/chats".to_owned(), "chats"),
        (format!("/chats/{chat}/members"), "members"),
        ("/sessions".to_owned(), "sessions"),
        (format!("/channels/{chat}/events"), "events"),
    ] {
        let whole = world.get(&format!("{path}?limit=2"), &ada).await.body;
        assert_eq!(whole[items].as_array().unwrap().len(), 2, "{path}: {whole}");
        assert_eq!(whole["next"], Value::Null, "{path}");
        let first = world.get(&format!("{path}?limit=1"), &ada).await.body;
        assert_eq!(first[items], json!([whole[items][0]]), "{path}");
        let cursor = first["next"].as_str().map_or_else(|| first["next"].to_string(), str::to_owned);
        let second = world.get(&format!("{path}?limit=1&cursor={cursor}"), &ada).await.body;
        assert_eq!(second[items], json!([whole[items][1]]), "{path}");
        assert_eq!(second["next"], Value::Null, "{path}");
    }
}

#[tokio::test]
async fn names_and_members_change() {
    let world = World::new().await;
    let (ada, bob) = (world.person(1).await, world.person(2).await);
    let chat = world.group(&ada, &[]).await;
    let rename = world
        .call(Method::PATCH, &format!("/chats/{chat}"), Some(&ada.token), json!({"name": "Looms"}))
        .await;
    assert_eq!((rename.status, &rename.body["name"]), (200, &json!("Looms")));
    let members = format!("/chats/{chat}/members");
    let change = async |body: Value| world.post(&members, &ada, body).await;
    let added = change(json!({"user_id": bob.user_id, "action": "add"})).await;
    assert_eq!((added.status, &added.body["role"]), (200, &json!("member")));
    let promoted = change(json!({"user_id": bob.user_id, "action": "set_role", "role": "admin"})).await;
    assert_eq!(promoted.body["role"], "admin");
    let removed = change(json!({"user_id": bob.user_id, "action": "remove"})).await;
    assert_eq!((removed.status, &removed.body), (204, &Value::Null));
    assert_eq!(
        change(json!({"user_id": bob.user_id, "action": "remove"})).await.refusal(),
        (404, "NOT_FOUND")
    );
    for bad in [
        json!({"user_id": bob.user_id, "action": "set_role"}),
        json!({"user_id": bob.user_id, "action": "remove", "role": "member"}),
        json!({"user_id": bob.user_id, "action": "add", "role": "king"}),
        json!({"user_id": "bob", "action": "add"}),
        json!({"user_id": bob.user_id}),
    ] {
        assert_eq!(change(bad.clone()).await.refusal(), (400, "BAD_REQUEST"), "{bad}");
    }
}

/// What the pipeline decides is told with the protocol's status.
#[tokio::test]
async fn what_one_may_not_do_is_told() {
    use courant_connectors::model::commands::Code;
    let world = World::new().await;
    let ada = world.person(1).await;
    let chat = world.group(&ada, &[]).await;
    let add = json!({"user_id": "user_1", "action": "add"});
    for (code, status) in [
        (Code::NotAMember, 403),
        (Code::Forbidden, 403),
        (Code::NotFound, 404),
        (Code::Conflict, 409),
        (Code::Unavailable, 503),
        (Code::Timeout, 504),
    ] {
        world.script_refusal(code);
        let answer = world.post(&format!("/chats/{chat}/members"), &ada, add.clone()).await;
        assert_eq!(answer.refusal(), (status, code.as_str()));
        assert_eq!(answer.body["error"]["retryable"], code.is_retryable());
    }
}
