//! `user_presence:…`: whether a user is there.

use async_trait::async_trait;
use redis::cmd;

use super::{Redis, keys};
use crate::live::{Presence, PresenceBoard, Result};
use crate::model::UserId;

#[async_trait]
impl PresenceBoard for Redis {
    async fn set_presence(&self, user: &UserId, presence: Presence) -> Result<()> {
        let json = serde_json::to_string(&presence).expect("text fields have a JSON form");
        let ttl = super::millis(self.0.limits.presence_ttl);
        self.0.link.one(cmd("SET").arg(keys::user_presence(user)).arg(json).arg("PX").arg(ttl)).await
    }

    async fn presence_of(&self, users: &[UserId]) -> Result<Vec<Option<Presence>>> {
        let get = |user| cmd("GET").arg(keys::user_presence(user)).take();
        let stored: Vec<Option<String>> = self.0.link.each(users.iter().map(get).collect()).await?;
        Ok(users.iter().zip(stored).map(|(user, json)| parse(user, &json?)).collect())
    }
}

/// What cannot be read counts as not there; it ends by itself.
fn parse(user: &UserId, json: &str) -> Option<Presence> {
    serde_json::from_str(json)
        .inspect_err(|error| tracing::warn!(%user, %error, "ignored a presence that cannot be read"))
        .ok()
}
