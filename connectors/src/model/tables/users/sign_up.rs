//! Registering a phone number and proving that it is one's own.
//!
//! A code is stored as a hash together with whose it is, when it ends and how often it was tried; whoever wants to try
//! it counts the attempt, or verifies, on the condition that attempts are left. So however many guess at the same
//! moment, one code stands [`MAX_ATTEMPTS`] of them.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use super::{SCHEMA, TABLE, User, is_stored};
use crate::model::tables::attributes::Attributes;
use crate::model::{Timestamp, UserId};
use crate::store::{Condition, Item, Key, Result, Update, Write};

/// Wrong codes until the code is void. Five guesses of a code of six digits are right once in 200,000.
pub const MAX_ATTEMPTS: u32 = 5;

/// A code as it is stored.
#[derive(Clone)]
pub struct CodeHash(String);

impl CodeHash {
    /// Of the code and whose it is: the codes of two users are never seen to be the same.
    pub fn of(user: &UserId, code: &str) -> Self {
        let hash = Sha256::new()
            .chain_update((user.as_str().len() as u64).to_be_bytes())
            .chain_update(user.as_str())
            .chain_update(code)
            .finalize();
        Self(URL_SAFE_NO_PAD.encode(hash))
    }
}

/// In a time that does not tell how much of them is the same.
impl PartialEq for CodeHash {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_bytes().ct_eq(other.0.as_bytes()).into()
    }
}

impl Eq for CodeHash {}

/// A short code is soon found by its hash.
impl fmt::Debug for CodeHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CodeHash(…)")
    }
}

/// A code that is sent to a phone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewCode {
    pub hash: CodeHash,
    pub expires_at: Timestamp,
}

/// A code that was sent to a phone, and what became of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verification {
    pub code: NewCode,
    /// Wrong ones, since the code was sent.
    pub attempts: u64,
}

impl Verification {
    pub(super) fn from_item(item: &Item) -> Result<Option<Self>> {
        let item = Attributes::of(&SCHEMA, item);
        let Some(hash) = item.optional("code_hash", Attributes::id)? else { return Ok(None) };
        let code = NewCode { hash: CodeHash(hash), expires_at: item.time("code_expires_at")? };
        Ok(Some(Self { code, attempts: item.u64("code_attempts")? }))
    }

    /// Whether somebody may have the code before them and be about to enter it.
    pub fn is_awaited(&self, now: Timestamp) -> bool {
        now < self.code.expires_at
    }

    /// Whether the code can still be tried.
    pub fn is_open(&self, now: Timestamp) -> bool {
        self.attempts < u64::from(MAX_ATTEMPTS) && self.is_awaited(now)
    }
}

/// The id under which a phone number is reserved.
pub(super) fn reservation(phone_number: &str) -> UserId {
    UserId::from(format!("phone#{phone_number}"))
}

/// A new user with their phone number, in one transaction: refused if the number is somebody's.
pub fn register_writes(user: &User, password_hash: &str, code: &NewCode) -> [Write; 2] {
    let reserved = Item::new()
        .with("user_id", &reservation(&user.phone_number))
        .with("owner_id", &user.user_id)
        .with("created_at", user.created_at);
    let item = user
        .to_item()
        .with("password_hash", password_hash)
        .with("code_hash", code.hash.0.as_str())
        .with("code_expires_at", code.expires_at)
        .with("code_attempts", 0);
    [reserved, item].map(|item| Write::put(TABLE, item).only_if(Condition::missing("user_id")))
}

/// Registers a number anew that nobody has proved to be theirs, if this is still the code that was sent last.
pub fn renew_write(
    user: &UserId,
    display_name: &str,
    password_hash: &str,
    (last, code): (Option<&CodeHash>, &NewCode),
    now: Timestamp,
) -> Write {
    let is_last = match last {
        Some(last) => Condition::equals("code_hash", last.0.as_str()),
        None => Condition::missing("code_hash"),
    };
    let update = Update::new()
        .set("display_name", display_name)
        .set("password_hash", password_hash)
        .set("code_hash", code.hash.0.as_str())
        .set("code_expires_at", code.expires_at)
        .set("code_attempts", 0)
        .set("updated_at", now);
    unverified(user, update, Condition::equals("phone_verified", false).and(is_last))
}

/// Counts a wrong code.
pub fn count_attempt_write(user: &UserId, code: &CodeHash) -> Write {
    unverified(user, Update::new().add("code_attempts", 1), open(code))
}

/// Believes that the number is theirs. The code stays, so that the same one is right when it comes twice.
pub fn verify_write(user: &UserId, code: &CodeHash, now: Timestamp) -> Write {
    unverified(user, Update::new().set("phone_verified", true).set("updated_at", now), open(code))
}

/// This is still the code, and attempts are left.
fn open(code: &CodeHash) -> Condition {
    Condition::equals("phone_verified", false)
        .and(Condition::equals("code_hash", code.0.as_str()))
        .and(Condition::less("code_attempts", MAX_ATTEMPTS))
}

fn unverified(user: &UserId, update: Update, holds: Condition) -> Write {
    Write::update(TABLE, Key::new("user_id", user), update).only_if(is_stored().and(holds))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_unix_millis(1_769_783_400_000);
    const END: Timestamp = Timestamp::from_unix_millis(1_769_784_000_000);

    fn user() -> User {
        User {
            user_id: "user_1".into(),
            phone_number: "+41791234567".to_owned(),
            phone_verified: false,
            display_name: "Ada".to_owned(),
            created_at: NOW,
            updated_at: NOW,
        }
    }

    fn code(code: &str) -> NewCode {
        NewCode { hash: CodeHash::of(&"user_1".into(), code), expires_at: END }
    }

    fn stored() -> Item {
        match register_writes(&user(), "$argon2id$", &code("042137")) {
            [_, Write::Put { item, .. }] => item,
            other => panic!("{other:?}"),
        }
    }

    fn after(item: &Item, write: Write) -> Option<Item> {
        let Write::Update { update, condition, .. } = write else { panic!("not an update") };
        condition.unwrap().holds(Some(item)).then(|| update.apply(item.clone()).unwrap())
    }

    #[test]
    fn hashes_are_of_a_code_and_its_user() {
        let of = |user: &str, code: &str| CodeHash::of(&user.into(), code);
        assert_eq!(of("user_1", "042137"), of("user_1", "042137"));
        assert_ne!(of("user_1", "042137"), of("user_2", "042137"));
        assert_ne!(of("user_1", "042137"), of("user_10", "42137"));
        assert_eq!(format!("{:?}", of("user_1", "042137")), "CodeHash(…)");
    }

    #[test]
    fn a_number_is_reserved_with_its_user() {
        let [reserved, user] = register_writes(&user(), "$argon2id$", &code("042137"));
        let Write::Put { item, .. } = &reserved else { panic!("{reserved:?}") };
        assert_eq!(item.text("user_id"), Some("phone#+41791234567"));
        assert_eq!(item.text("owner_id"), Some("user_1"));
        assert_eq!(item.get("phone_number"), None, "the index finds users only");
        for write in [reserved.clone(), user] {
            assert!(write.condition().unwrap().holds(None));
            assert!(!write.condition().unwrap().holds(Some(item)));
        }
    }

    #[test]
    fn a_code_stands_a_few_attempts() {
        let hash = code("042137").hash;
        let id = UserId::from("user_1");
        let mut item = stored();
        for attempts in 1..=u64::from(MAX_ATTEMPTS) {
            assert!(after(&item, verify_write(&id, &hash, NOW)).is_some(), "before attempt {attempts}");
            item = after(&item, count_attempt_write(&id, &hash)).unwrap();
            assert_eq!(Verification::from_item(&item).unwrap().unwrap().attempts, attempts);
        }
        assert!(after(&item, count_attempt_write(&id, &hash)).is_none());
        assert!(after(&item, verify_write(&id, &hash, NOW)).is_none(), "the right one comes too late");
        assert!(!Verification::from_item(&item).unwrap().unwrap().is_open(NOW));
        let renew = |last| renew_write(&id, "Ada L.", "$argon2id$2", (last, &code("7")), NOW);
        let another = code("8").hash;
        assert!(after(&item, renew(None)).is_none() && after(&item, renew(Some(&another))).is_none());
        let renewed = after(&item, renew(Some(&hash))).unwrap();
        assert!(
            Verification::from_item(&renewed).unwrap().unwrap().is_open(NOW),
            "another code, another try"
        );
        assert!(after(&renewed, verify_write(&id, &hash, NOW)).is_none(), "the former code is void");
    }

    #[test]
    fn what_is_verified_is_not_registered_again() {
        let (id, hash) = (UserId::from("user_1"), code("042137").hash);
        let verified = after(&stored(), verify_write(&id, &hash, NOW)).unwrap();
        assert!(User::from_item(&verified).unwrap().phone_verified);
        let renew = renew_write(&id, "Eve", "$argon2id$2", (Some(&hash), &code("7")), NOW);
        assert!(after(&verified, renew).is_none());
        assert!(after(&verified, count_attempt_write(&id, &hash)).is_none());
    }

    #[test]
    fn a_code_ends() {
        let verification = Verification::from_item(&stored()).unwrap().unwrap();
        assert!(verification.is_open(Timestamp::from_unix_millis(END.unix_millis() - 1)));
        assert!(!verification.is_open(END));
        assert_eq!(Verification::from_item(&user().to_item()).unwrap(), None);
    }
}
