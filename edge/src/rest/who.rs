//! Who asks, and whether they may ask again already.

use std::future::Future;

use courant_connectors::model::Timestamp;
use courant_connectors::model::commands::{Code, Refusal};
use courant_connectors::model::tables::sessions;
use courant_pipeline::clock;
use warp::http::{HeaderMap, header};

use super::query::unavailable;
use crate::api::Api;
use crate::auth::Caller;
use crate::http::ClientAddress;
use crate::limits::{Limit, by_address};

/// Somebody a route answers to.
pub(super) trait Who: Sized + Send + 'static {
    /// Whether a token is needed.
    const SIGNED_IN: bool;
    /// What is counted unless a route says otherwise.
    const LIMIT: Limit;

    fn identify(
        api: &Api,
        headers: &HeaderMap,
        address: ClientAddress,
        limit: Limit,
    ) -> impl Future<Output = Result<Self, Refusal>> + Send;
}

impl Who for Caller {
    const SIGNED_IN: bool = true;
    const LIMIT: Limit = Limit::Requests;

    async fn identify(
        api: &Api,
        headers: &HeaderMap,
        _: ClientAddress,
        limit: Limit,
    ) -> Result<Self, Refusal> {
        let token = bearer(headers).ok_or_else(|| {
            Refusal::new(Code::Unauthenticated, "sign in and send authorization: Bearer <access token>")
        })?;
        let caller = api.authenticate.authenticate(token)?;
        api.limits.take(limit, caller.user_id.as_str()).await?;
        let now = Timestamp::from(clock::now());
        let session = sessions::validate(&*api.store, &caller.session_id, now).await.map_err(unavailable)?;
        match session {
            Some(session) if session.user_id == caller.user_id => Ok(caller),
            _ => Err(Refusal::new(Code::Unauthenticated, "the session has ended; sign in again")),
        }
    }
}

/// Anybody, known by their address only.
impl Who for ClientAddress {
    const SIGNED_IN: bool = false;
    const LIMIT: Limit = Limit::Anonymous;

    async fn identify(
        api: &Api,
        _: &HeaderMap,
        address: ClientAddress,
        limit: Limit,
    ) -> Result<Self, Refusal> {
        api.limits.take(limit, &by_address(address.0)).await?;
        Ok(address)
    }
}

/// The token of `authorization: Bearer …`.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}
