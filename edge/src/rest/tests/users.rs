//! Oneself and others.

use serde_json::{Value, json};
use warp::http::Method;

use super::world::{PASSWORD, World, phone_number};

#[tokio::test]
async fn one_sees_all_of_oneself_and_a_name_of_others() {
    let world = World::new().await;
    let (ada, bob) = (world.person(1).await, world.person(2).await);
    let me = world.get("/users/me", &ada).await.body;
    assert_eq!((&me["phone_number"], &me["phone_verified"]), (&json!(phone_number(1)), &json!(true)));
    assert!(me.get("password_hash").is_none());
    let other = world.get(&format!("/users/{}", ada.user_id), &bob).await;
    assert_eq!(other.body, json!({"user_id": ada.user_id, "display_name": "Person 1"}));
    for nobody in ["user_0", "chat_1", "..", "%2e%2e", &"user_0".repeat(100)] {
        let answer = world.get(&format!("/users/{nobody}"), &ada).await;
        assert_eq!(answer.refusal(), (404, "NOT_FOUND"), "{nobody}");
    }
    let edit = json!({"display_name": "Ada Lovelace"});
    let edited = world.call(Method::PATCH, "/users/me", Some(&ada.token), edit).await;
    assert_eq!((edited.status, &edited.body["display_name"]), (200, &json!("Ada Lovelace")));
    for bad in
        [json!({}), json!({"display_name": ""}), json!({"display_name": "A", "role": "owner"}), json!([])]
    {
        let answer = world.call(Method::PATCH, "/users/me", Some(&ada.token), bad.clone()).await;
        assert_eq!(answer.refusal(), (400, "BAD_REQUEST"), "{bad}");
    }
}

#[tokio::test]
async fn people_are_found_by_their_number_once_it_is_theirs() {
    let world = World::new().await;
    let (ada, bob) = (world.person(1).await, world.person(2).await);
    let find = async |number: &str| world.get(&format!("/users?phone_number={number}"), &ada).await;
    let expected = json!({"users": [{"user_id": bob.user_id, "display_name": "Person 2"}]});
    assert_eq!(find("%2B41790000002").await.body, expected);
    assert_eq!(
        find("+41790000002").await.body,
        expected,
        "a plus that is not escaped means a space elsewhere"
    );
    assert_eq!(find("%2B41790000003").await.body, json!({"users": []}));
    let unproved = json!({"phone_number": phone_number(3), "display_name": "Eve", "password": PASSWORD});
    assert_eq!(world.post_as_nobody("/auth/register", unproved).await.status, 201);
    assert_eq!(find("%2B41790000003").await.body, json!({"users": []}), "she may not be who she says");
    for bad in ["", "0790000002", "%2B41790000002&limit=1", "%2B41790000002&phone_number=%2B41790000001"] {
        assert_eq!(find(bad).await.refusal(), (400, "BAD_REQUEST"), "{bad}");
    }
    assert_eq!(world.get("/users", &ada).await.refusal(), (400, "BAD_REQUEST"));
    let posted = world.call(Method::POST, "/auth/logout?all=true", Some(&ada.token), Value::Null).await;
    assert_eq!(posted.refusal(), (400, "BAD_REQUEST"), "a query where none is taken");
}
