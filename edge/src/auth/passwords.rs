//! Passwords, hashed with Argon2id.
//!
//! A hash takes 19 MiB and some 20 ms on purpose. So only a few are made at the same time, on threads that may block: more
//! would cost memory without being done sooner. And only so many wait for their turn: anybody can ask for a hash, and must
//! not take the places of those who ask for something else. Whoever tries a number that nobody has registered waits as long as for a
//! wrong password, so that the time tells nobody who is here.

use std::sync::Arc;
use std::time::Duration;

use argon2::password_hash::{Error, PasswordHasher as _, PasswordVerifier as _};
use argon2::{Algorithm, Argon2, Params, Version};
use courant_connectors::model::commands::{Code, Refusal};
use tokio::sync::Semaphore;

/// In characters. Shorter ones are guessed; length is what counts, so nothing else is asked of a password.
pub(crate) const SHORTEST_PASSWORD: usize = 8;
/// Longer than anybody types; hashing takes time by the byte.
pub(crate) const LONGEST_PASSWORD: usize = 128;
/// Hashes at the same time: four times 19 MiB at most.
const MOST_AT_ONCE: usize = 4;
/// Hashes that are made or wait: a few seconds of work, and a fraction of the requests there may be.
const MOST_WAITING: usize = 128;
/// When to come back if there are more: some have been made by then.
const CROWDED: Duration = Duration::from_secs(1);

/// Hashes and verifies. Clones share the limit.
#[derive(Clone)]
pub struct Passwords {
    params: Params,
    /// full: whoever comes waits for one to end
    slots: Arc<Semaphore>,
    /// full: refused with `UNAVAILABLE`
    places: Arc<Semaphore>,
}

impl Default for Passwords {
    /// As OWASP advises: 19 MiB, two passes, one lane.
    fn default() -> Self {
        Self::with_params(Params::DEFAULT)
    }
}

impl Passwords {
    fn with_params(params: Params) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self {
            params,
            slots: Arc::new(Semaphore::new(cores.min(MOST_AT_ONCE))),
            places: Arc::new(Semaphore::new(MOST_WAITING)),
        }
    }

    /// Fast and weak, for tests that are about something else.
    #[cfg(test)]
    pub(crate) fn weak() -> Self {
        Self::with_params(Params::new(Params::MIN_M_COST, 1, 1, None).unwrap())
    }

    /// In PHC form, with a salt of its own.
    pub async fn hash(&self, password: String) -> Result<String, Refusal> {
        let argon2 = self.argon2();
        let hash = self.work(move || argon2.hash_password(password.as_bytes())).await?;
        hash.map(|hash| hash.to_string()).map_err(|error| unavailable(&error))
    }

    /// Whether this is the password. Without a hash, as for a user who does not exist, it is not, after the same time.
    pub async fn verify(&self, password: String, hash: Option<String>) -> Result<bool, Refusal> {
        let (argon2, nobodys) = (self.argon2(), self.nobodys_hash());
        let verified = self.work(move || {
            let is_somebodys = hash.is_some();
            let hash = hash.unwrap_or(nobodys);
            let verified = argon2.verify_password(password.as_bytes(), hash.as_str());
            verified.and(if is_somebodys { Ok(()) } else { Err(Error::PasswordInvalid) })
        });
        match verified.await? {
            Ok(()) => Ok(true),
            Err(Error::PasswordInvalid) => Ok(false),
            Err(error) => Err(unavailable(&error)),
        }
    }

    fn argon2(&self) -> Argon2<'static> {
        Argon2::new(Algorithm::Argon2id, Version::V0x13, self.params.clone())
    }

    /// Of no password. It takes as long to verify as any other: only the parameters count.
    fn nobodys_hash(&self) -> String {
        let (memory, passes, lanes) = (self.params.m_cost(), self.params.t_cost(), self.params.p_cost());
        let (salt, hash) = ("A".repeat(22), "A".repeat(43));
        format!("$argon2id$v=19$m={memory},t={passes},p={lanes}${salt}${hash}")
    }

    /// Runs where it may block, when its turn comes.
    async fn work<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T, Refusal> {
        let _place = self.places.try_acquire().map_err(|_| {
            let crowded = "too many people sign up or sign in at this moment; try again";
            Refusal::new(Code::Unavailable, crowded).retry_after(CROWDED)
        })?;
        let slot = Arc::clone(&self.slots).acquire_owned().await.map_err(|error| unavailable(&error))?;
        let working = tokio::task::spawn_blocking(move || {
            let done = work();
            // Held by the work and not by who waits for it: they may give up, the memory is still in use.
            drop(slot);
            done
        });
        working.await.map_err(|error| unavailable(&error))
    }
}

fn unavailable(error: &dyn std::fmt::Display) -> Refusal {
    tracing::error!(%error, "cannot hash or verify a password");
    Refusal::new(Code::Unavailable, "passwords cannot be verified now; try again")
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn a_password_is_known_by_its_hash() {
        let passwords = Passwords::default();
        let hash = passwords.hash("correct horse".to_owned()).await.unwrap();
        assert!(hash.starts_with("$argon2id$v=19$m=19456,t=2,p=1$"), "{hash}");
        assert!(passwords.verify("correct horse".to_owned(), Some(hash.clone())).await.unwrap());
        assert!(!passwords.verify("wrong horse".to_owned(), Some(hash.clone())).await.unwrap());
        let again = passwords.hash("correct horse".to_owned()).await.unwrap();
        assert_ne!(hash, again, "each has its own salt");
        // hashes of before stay good when the parameters change
        assert!(Passwords::weak().verify("correct horse".to_owned(), Some(hash)).await.unwrap());
    }

    #[tokio::test]
    async fn nobody_costs_as_much_as_somebody() {
        let passwords = Passwords::weak();
        let nobodys = passwords.nobodys_hash();
        let wrong = passwords.argon2().verify_password(b"x", nobodys.as_str());
        assert_eq!(wrong, Err(Error::PasswordInvalid), "it is hashed and compared, not refused for its form");
        assert!(!passwords.verify("anything".to_owned(), None).await.unwrap());
    }

    #[tokio::test]
    async fn a_damaged_hash_lets_nobody_in() {
        let refused = Passwords::weak().verify("x".to_owned(), Some("plain".to_owned())).await.unwrap_err();
        assert_eq!(refused.code, Code::Unavailable);
    }

    #[tokio::test]
    async fn a_crowd_is_refused_and_not_kept_waiting() {
        let passwords = Passwords::weak();
        let mut crowd: Vec<_> =
            (0..MOST_WAITING).map(|_| Box::pin(passwords.hash("correct horse".to_owned()))).collect();
        for waiting in &mut crowd {
            assert!(futures::poll!(waiting).is_pending());
        }
        let refused = passwords.verify("correct horse".to_owned(), None).now_or_never();
        let refused = refused.expect("at once").unwrap_err();
        assert_eq!((refused.code, refused.retry_after_ms), (Code::Unavailable, Some(1000)));
        futures::future::join_all(crowd).await;
        assert!(!passwords.verify("correct horse".to_owned(), None).await.unwrap());
    }

    #[tokio::test]
    async fn a_few_at_a_time() {
        let passwords = Passwords::weak();
        let all = passwords.slots.available_permits();
        assert!(all <= MOST_AT_ONCE);
        let slots =
            Arc::clone(&passwords.slots).acquire_many_owned(u32::try_from(all).unwrap()).await.unwrap();
        let mut waiting = Box::pin(passwords.hash("correct horse".to_owned()));
        assert!(futures::poll!(&mut waiting).is_pending());
        drop(slots);
        waiting.await.unwrap();
    }
}
