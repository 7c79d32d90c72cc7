//! Tokens of transactions: which were used in the last ten minutes, and for what.
//!
//! Written in the commit of the transaction itself, so that a token is known exactly if its transaction was done.

use fjall::Keyspace;

use super::super::group::Group;
use super::read_error;
use crate::store::{Result, StoreError};

/// As long as DynamoDB knows a token.
const KNOWN_FOR_MILLIS: u64 = 10 * 60 * 1000;
const MAX_TOKEN_CHARS: usize = 36;

/// One row per token and one per time of use, in one keyspace.
const BY_TOKEN: u8 = b't';
const BY_TIME: u8 = b'u';

/// A token and what it is used for.
pub(super) struct TokenUse {
    token: Vec<u8>,
    /// Of the writes, so that another transaction under the same token is noticed.
    digest: u128,
}

impl TokenUse {
    pub(super) fn new(token: &str, digest: u128) -> Result<Self> {
        if token.is_empty() || token.chars().count() > MAX_TOKEN_CHARS {
            return Err(StoreError::Invalid(format!(
                "a transaction's token has 1 to {MAX_TOKEN_CHARS} characters"
            )));
        }
        Ok(Self { token: token.as_bytes().to_vec(), digest })
    }

    fn key(&self) -> Vec<u8> {
        [&[BY_TOKEN], &self.token[..]].concat()
    }
}

pub(in crate::embedded) struct Tokens(pub(in crate::embedded) Keyspace);

impl Tokens {
    /// Whether this very transaction was done; an error if another one was.
    pub(super) fn was_used(&self, group: &Group, token: &TokenUse) -> Result<bool> {
        let Some(bytes) = group.get(&self.0, &token.key()).map_err(read_error)? else { return Ok(false) };
        let (digest, used_at) = parse(&bytes).ok_or_else(|| super::damaged("a token cannot be read"))?;
        if used_at + KNOWN_FOR_MILLIS <= group.now {
            return Ok(false);
        }
        if digest == token.digest { Ok(true) } else { Err(StoreError::TokenReused) }
    }

    pub(super) fn remember(&self, group: &mut Group, token: &TokenUse) {
        let now = group.now;
        group.put(&self.0, token.key(), [&token.digest.to_be_bytes()[..], &now.to_be_bytes()].concat());
        group.put(&self.0, [&[BY_TIME], &now.to_be_bytes()[..], &token.token].concat(), []);
    }

    /// Removes tokens that are no longer to be known, at most `limit`; returns how many.
    pub(super) fn sweep(&self, group: &mut Group, limit: usize) -> Result<usize> {
        let forgotten = group.now.saturating_sub(KNOWN_FOR_MILLIS);
        let until = [&[BY_TIME], &forgotten.to_be_bytes()[..]].concat();
        let mut removed = 0;
        for guard in self.0.range(vec![BY_TIME]..until).take(limit) {
            let key = guard.key().map_err(read_error)?;
            let token = [&[BY_TOKEN], &key[1 + size_of::<u64>()..]].concat();
            // the token may have been used again since
            let last = group.get(&self.0, &token).map_err(read_error)?;
            if last.and_then(|bytes| parse(&bytes)).is_some_and(|(_, used_at)| used_at < forgotten) {
                group.remove(&self.0, token);
            }
            group.remove(&self.0, key.to_vec());
            removed += 1;
        }
        Ok(removed)
    }
}

fn parse(bytes: &[u8]) -> Option<(u128, u64)> {
    let (digest, used_at) = bytes.split_at_checked(size_of::<u128>())?;
    Some((u128::from_be_bytes(digest.try_into().ok()?), u64::from_be_bytes(used_at.try_into().ok()?)))
}
