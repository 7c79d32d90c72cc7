//! `chat_members:…`: who is in a chat, as far as the store was asked lately.
//!
//! A permission to fill is a member of the same set, `?fill:…`, so that the one DEL of an invalidation voids it
//! together with what is cached, in the one slot of the key. All who fill a chat at the same time share a
//! permission, and the first fill uses it up: the set then holds users and nothing else. A version number in a
//! second key would do the same on one server, and would lie in another slot of a cluster.

use async_trait::async_trait;
use redis::cmd;
use ulid::Ulid;

use super::keys::{EMPTY_MARKER, FILL_MARKER, MARKER};
use super::{Redis, keys};
use crate::live::{FillToken, LiveError, MembershipCache, Result};
use crate::model::{ChatId, UserId};

/// Joins the permission that is there, or makes one. What is cached already stays readable and keeps its time.
const BEGIN_FILL: &str = "
local permission, known = nil, false
for _, member in ipairs(redis.call('SMEMBERS', KEYS[1])) do
  if string.sub(member, 1, 6) == '?fill:' then permission = member else known = true end
end
if not permission then
  permission = ARGV[1]
  redis.call('SADD', KEYS[1], permission)
end
if not known then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return permission";

/// Replaces the set if the permission is there; else says whether another filler was faster. The set holds one
/// permission at most, so two members tell.
const FILL: &str = "
if redis.call('SISMEMBER', KEYS[1], ARGV[1]) == 0 then
  for _, member in ipairs(redis.call('SRANDMEMBER', KEYS[1], 2)) do
    if string.sub(member, 1, 6) ~= '?fill:' then return 1 end
  end
  return 0
end
redis.call('DEL', KEYS[1])
for first = 3, #ARGV, 1000 do
  redis.call('SADD', KEYS[1], unpack(ARGV, first, math.min(first + 999, #ARGV)))
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1";

#[async_trait]
impl MembershipCache for Redis {
    async fn members(&self, chats: &[ChatId]) -> Result<Vec<Option<Vec<UserId>>>> {
        let read = |chat| cmd("SMEMBERS").arg(keys::chat_members(chat)).take();
        let sets: Vec<Vec<String>> = self.0.link.each(chats.iter().map(read).collect()).await?;
        Ok(sets.into_iter().map(users_of).collect())
    }

    async fn begin_fill(&self, chat: &ChatId) -> Result<FillToken> {
        let offered = format!("{FILL_MARKER}{}", Ulid::generate());
        let mut begin = cmd("EVAL");
        begin.arg(BEGIN_FILL).arg(1).arg(keys::chat_members(chat));
        begin.arg(offered).arg(super::millis(self.0.limits.fill_ttl));
        let permission: String = self.0.link.one(&begin).await?;
        Ok(FillToken { chat: chat.clone(), token: permission.into() })
    }

    async fn fill(&self, token: FillToken, members: &[UserId]) -> Result<bool> {
        let mut fill = cmd("EVAL");
        fill.arg(FILL).arg(1).arg(keys::chat_members(&token.chat));
        fill.arg(token.token.as_str()).arg(super::millis(self.0.limits.members_ttl));
        if members.is_empty() {
            fill.arg(EMPTY_MARKER);
        }
        for member in members {
            if member.as_str().starts_with(MARKER) {
                return Err(LiveError::Invalid(format!("the id of user '{member}' begins with '{MARKER}'")));
            }
            fill.arg(member.as_str());
        }
        self.0.link.one(&fill).await
    }

    async fn invalidate(&self, chats: &[ChatId]) -> Result<()> {
        let delete = |chat| cmd("DEL").arg(keys::chat_members(chat)).take();
        self.0.link.each::<()>(chats.iter().map(delete).collect()).await?;
        Ok(())
    }
}

/// None if the set holds nothing but a permission, or nothing at all.
fn users_of(set: Vec<String>) -> Option<Vec<UserId>> {
    let known = set.iter().any(|member| !member.starts_with(FILL_MARKER));
    known.then(|| set.into_iter().filter(|member| !member.starts_with(MARKER)).map(Into::into).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markers_are_no_users() {
        let read = |members: &[&str]| users_of(members.iter().map(|&member| member.to_owned()).collect());
        assert_eq!(read(&[]), None);
        assert_eq!(read(&["?fill:1"]), None);
        assert_eq!(read(&["?empty"]), Some(vec![]));
        assert_eq!(read(&["?empty", "?fill:1"]), Some(vec![]));
        assert_eq!(read(&["a", "?fill:1", "b"]), Some(vec!["a".into(), "b".into()]));
    }

    #[test]
    fn scripts_know_the_marker() {
        let (length, marker) = (FILL_MARKER.len(), FILL_MARKER);
        for script in [BEGIN_FILL, FILL] {
            assert!(script.contains(&format!("string.sub(member, 1, {length})")));
            assert!(script.contains(&format!("'{marker}'")));
        }
    }
}
