//! `/auth`: registering, proving a phone number, signing in and out.
//!
//! Passwords and codes are guessed by trying, so tries are counted by address and by phone number: one attacker with many
//! addresses, and one address that tries many numbers, both run into a limit. Somebody who knows a number can thereby keep its
//! owner from signing in for a while; devices that are signed in are not affected.

use courant_connectors::model::commands::{
    Answer, Code, Command, EndSessions, InUseFrom, OpenSession, Refusal, Register, RotateSession,
    SessionAnswer, VerifyPhone,
};
use courant_connectors::model::tables::users;
use courant_connectors::model::{DeviceId, SessionId, Timestamp, UserId};
use courant_pipeline::clock;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use ulid::Ulid;

use super::fields::{Device, Name, Password};
use super::query::{command, unavailable, unexpected};
use super::reply::{Created, Done, Found};
use super::route::{Ask, Route};
use crate::api::Api;
use crate::auth::{ACCESS_LIFETIME, CODE_LIFETIME, Caller, PhoneNumber, RefreshToken, VerificationCode};
use crate::http::ClientAddress;
use crate::limits::Limit;

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::post("/auth/register", "Register a phone number", register).refuses(&[Code::Conflict]),
        Route::post("/auth/verify", "Prove that the phone number is yours", verify)
            .refuses(&[Code::Forbidden, Code::NotFound]),
        Route::post("/auth/login", "Sign in", login).limited_by(Limit::Logins).refuses(&[
            Code::Unauthenticated,
            Code::Forbidden,
            Code::Conflict,
        ]),
        Route::post("/auth/refresh", "Get new tokens for a refresh token, which is spent", refresh)
            .refuses(&[Code::Unauthenticated]),
        Route::post("/auth/logout", "Sign out here", logout),
        Route::post("/auth/logout-all", "Sign out everywhere", logout_all),
    ]
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Registration {
    phone_number: PhoneNumber,
    display_name: Name,
    password: Password,
}

#[derive(Serialize, JsonSchema)]
struct Registered {
    user_id: UserId,
    phone_verified: bool,
    /// What was sent to the phone; in development only, see `auth.reveal_codes`.
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<String>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Proof {
    phone_number: PhoneNumber,
    code: VerificationCode,
}

#[derive(Serialize, JsonSchema)]
struct Proved {
    user_id: UserId,
    phone_verified: bool,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Login {
    phone_number: PhoneNumber,
    password: Password,
    /// Made by the client and kept; a new one is made if left out. Signing in again on a device ends its session of before.
    device_id: Option<Device>,
    /// For the list of sessions.
    device_name: Option<Name>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Refresh {
    refresh_token: String,
}

#[derive(Serialize, JsonSchema)]
struct SignedIn {
    user_id: UserId,
    device_id: DeviceId,
    session_id: SessionId,
    access_token: String,
    /// Seconds that the access token is good for.
    expires_in: u64,
    /// Good once.
    refresh_token: String,
}

async fn register(ask: Ask<ClientAddress, (), Registration>) -> Result<Created<Registered>, Refusal> {
    let Registration { phone_number, display_name, password } = ask.input;
    count_try(&ask.api, "register", &phone_number).await?;
    let password_hash = ask.api.passwords.hash(password.0).await?;
    let code = VerificationCode::generate().into_string();
    let register = Register {
        user_id: UserId::generate(),
        phone_number: phone_number.into_string(),
        display_name: display_name.0,
        password_hash,
        code: code.clone(),
        code_expires_at: now().plus(CODE_LIFETIME),
        in_use_from: if ask.api.auth.require_verification {
            InUseFrom::Verification
        } else {
            InUseFrom::Registration
        },
    };
    match command(&ask.api, Command::Register(register)).await? {
        Answer::User(user) => Ok(Created(Registered {
            user_id: user.user_id,
            phone_verified: user.phone_verified,
            code: ask.api.auth.reveal_codes.then_some(code),
        })),
        other => Err(unexpected(&other)),
    }
}

async fn verify(ask: Ask<ClientAddress, (), Proof>) -> Result<Found<Proved>, Refusal> {
    let Proof { phone_number, code } = ask.input;
    count_try(&ask.api, "verify", &phone_number).await?;
    let verify = VerifyPhone { phone_number: phone_number.into_string(), code: code.into_string() };
    match command(&ask.api, Command::VerifyPhone(verify)).await? {
        Answer::User(user) => {
            Ok(Found(Proved { user_id: user.user_id, phone_verified: user.phone_verified }))
        }
        other => Err(unexpected(&other)),
    }
}

async fn login(ask: Ask<ClientAddress, (), Login>) -> Result<Found<SignedIn>, Refusal> {
    let Login { phone_number, password, device_id, device_name } = ask.input;
    count_try(&ask.api, "login", &phone_number).await?;
    let user_id = who_signs_in(&ask.api, &phone_number, password).await?;
    let refresh_token = RefreshToken::generate(SessionId::generate());
    let new_device = || DeviceId::from(format!("dev_{}", Ulid::generate()));
    let open = OpenSession {
        session_id: refresh_token.session_id.clone(),
        user_id,
        device_id: device_id.map_or_else(new_device, Device::id),
        device_name: device_name.map(|name| name.0),
        refresh_token_hash: refresh_token.hash(),
        expires_at: now().plus(ask.api.auth.session_lifetime.0),
    };
    signed_in(&ask.api, Command::OpenSession(open), &refresh_token).await
}

async fn refresh(ask: Ask<ClientAddress, (), Refresh>) -> Result<Found<SignedIn>, Refusal> {
    let spent = RefreshToken::parse(&ask.input.refresh_token).ok_or_else(|| {
        Refusal::new(Code::Unauthenticated, "the refresh token is not valid; sign in again")
    })?;
    let new = RefreshToken::generate(spent.session_id.clone());
    let rotate = RotateSession {
        session_id: spent.session_id.clone(),
        spent_hash: spent.hash(),
        new_hash: new.hash(),
        expires_at: now().plus(ask.api.auth.session_lifetime.0),
    };
    signed_in(&ask.api, Command::RotateSession(rotate), &new).await
}

async fn logout(ask: Ask<Caller>) -> Result<Done, Refusal> {
    let Caller { user_id, session_id, .. } = ask.who;
    match end_sessions(&ask.api, EndSessions { user_id, session_id: Some(session_id) }).await {
        // Signed out by another request meanwhile.
        Err(refusal) if refusal.code == Code::NotFound => Ok(Done),
        ended => ended,
    }
}

async fn logout_all(ask: Ask<Caller>) -> Result<Done, Refusal> {
    end_sessions(&ask.api, EndSessions { user_id: ask.who.user_id, session_id: None }).await
}

async fn end_sessions(api: &Api, end: EndSessions) -> Result<Done, Refusal> {
    command(api, Command::EndSessions(end)).await.map(|_| Done)
}

/// Whose number and password these are. Takes as long, and says the same, whether the number or the password is wrong.
async fn who_signs_in(api: &Api, phone_number: &PhoneNumber, password: Password) -> Result<UserId, Refusal> {
    let found = users::credentials(&*api.store, phone_number.as_str()).await.map_err(unavailable)?;
    let hash = found.as_ref().map(|credentials| credentials.password_hash.clone());
    let is_right = api.passwords.verify(password.0, hash).await?;
    let Some(credentials) = found.filter(|_| is_right) else {
        return Err(Refusal::new(Code::Unauthenticated, "the phone number or the password is wrong"));
    };
    if api.auth.require_verification && !credentials.user.phone_verified {
        return Err(Refusal::new(Code::Forbidden, "verify the phone number first"));
    }
    Ok(credentials.user.user_id)
}

/// Opens or renews a session and tells its tokens.
async fn signed_in(api: &Api, session: Command, refresh: &RefreshToken) -> Result<Found<SignedIn>, Refusal> {
    let SessionAnswer { session_id, user_id, device_id } = match command(api, session).await? {
        Answer::Session(session) => session,
        other => return Err(unexpected(&other)),
    };
    let caller = Caller { user_id, session_id, device_id };
    Ok(Found(SignedIn {
        access_token: api.tokens.issue(&caller),
        expires_in: ACCESS_LIFETIME.as_secs(),
        refresh_token: refresh.reveal(),
        user_id: caller.user_id,
        device_id: caller.device_id,
        session_id: caller.session_id,
    }))
}

/// One more try with a phone number, whatever address it comes from. Each kind has its own count: who registers, verifies
/// and signs in for the first time tries each once.
async fn count_try(api: &Api, what: &str, phone_number: &PhoneNumber) -> Result<(), Refusal> {
    api.limits.take(Limit::Logins, &format!("{what}:{}", phone_number.as_str())).await
}

fn now() -> Timestamp {
    clock::now().into()
}
