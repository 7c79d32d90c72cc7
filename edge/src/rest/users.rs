//! `/users`: oneself, and other people.

use courant_connectors::model::UserId;
use courant_connectors::model::commands::{Answer, Code, Command, EditProfile, Profile, Refusal};
use courant_connectors::model::tables::users;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::fields::Name;
use super::query::{command, unavailable, unexpected};
use super::reply::Found;
use super::route::{Ask, Route};
use crate::auth::{Caller, PhoneNumber};

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::get("/users/me", "Yourself", me).refuses(&[Code::NotFound]),
        Route::patch("/users/me", "Change your name", edit_me).refuses(&[Code::NotFound]),
        Route::get("/users/{user_id}", "Somebody", somebody),
        Route::get("/users", "Find somebody by their phone number", find),
    ]
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct EditMe {
    display_name: Name,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Find {
    phone_number: NumberInQuery,
}

/// A number whose plus was not escaped arrives with a space in its place.
#[derive(Deserialize, JsonSchema)]
#[serde(try_from = "String")]
#[schemars(inline)]
struct NumberInQuery(PhoneNumber);

impl TryFrom<String> for NumberInQuery {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let text = text.strip_prefix(' ').map(|digits| format!("+{digits}")).unwrap_or(text);
        PhoneNumber::try_from(text).map(Self)
    }
}

/// Somebody as others see them.
#[derive(Serialize, JsonSchema)]
struct Person {
    user_id: UserId,
    display_name: String,
}

impl From<users::User> for Person {
    fn from(user: users::User) -> Self {
        Self { user_id: user.user_id, display_name: user.display_name }
    }
}

/// Nobody or one person: a phone number is somebody's only.
#[derive(Serialize, JsonSchema)]
struct People {
    users: Vec<Person>,
}

fn nobody() -> Refusal {
    Refusal::new(Code::NotFound, "there is no such user")
}

async fn me(ask: Ask<Caller>) -> Result<Found<Profile>, Refusal> {
    let user = users::get(&*ask.api.store, &ask.who.user_id).await.map_err(unavailable)?;
    Ok(Found(user.ok_or_else(nobody)?.into()))
}

async fn edit_me(ask: Ask<Caller, (), EditMe>) -> Result<Found<Profile>, Refusal> {
    let edit = EditProfile { user_id: ask.who.user_id, display_name: ask.input.display_name.0 };
    match command(&ask.api, Command::EditProfile(edit)).await? {
        Answer::User(profile) => Ok(Found(profile)),
        other => Err(unexpected(&other)),
    }
}

async fn somebody(ask: Ask<Caller, UserId>) -> Result<Found<Person>, Refusal> {
    let user = users::get(&*ask.api.store, &ask.path).await.map_err(unavailable)?;
    Ok(Found(user.ok_or_else(nobody)?.into()))
}

/// Finds only those who have proved that the number is theirs, where that is asked of anybody: a name under somebody
/// else's number would be believed.
async fn find(ask: Ask<Caller, (), Find>) -> Result<Found<People>, Refusal> {
    let store = &*ask.api.store;
    let number = ask.input.phone_number.0;
    let user = match users::by_phone(store, number.as_str()).await.map_err(unavailable)? {
        Some(user_id) => users::get(store, &user_id).await.map_err(unavailable)?,
        None => None,
    };
    let proved = |user: &users::User| user.phone_verified || !ask.api.auth.require_verification;
    Ok(Found(People { users: user.filter(proved).map(Person::from).into_iter().collect() }))
}
