//! Registering a phone number, and proving that it is one's own.

use courant_connectors::model::commands::{Answer, Code, InUseFrom, Refusal, Register, VerifyPhone};
use courant_connectors::model::tables::users::{
    self, CodeHash, MAX_ATTEMPTS, NewCode, Registered, User, Verification, is_phone_number,
};
use courant_connectors::model::topics::VerificationRequested;
use courant_connectors::model::topics::verifications_requested::RequestedVerification;
use courant_connectors::model::{Timestamp, UserId};
use courant_connectors::store::{Transaction, WriteStore as _};
use courant_pipeline::StageError;

use super::{Accounts, VERIFICATION, check_display_name, now};
use crate::backends::store_error;
use crate::commands::{Carried, DECISIONS, Outcome, Unable, keeps_changing, was_done};

const REGISTER: &str = "register a phone number";
const VERIFY: &str = "verify a phone number";

impl Accounts {
    /// A number that somebody registered and nobody proved to be theirs is registered anew, for the same user: else
    /// whoever mistypes a number would keep its owner out. Not so while a code is on its way to the phone: who enters the
    /// code that came last would prove the number for the password of whoever registered last. Nor where people sign in
    /// without proving it: there the number is that of an account in use, and to register it anew would be to take the
    /// account.
    pub(super) async fn register(&self, command: &Register) -> Carried {
        check_phone_number(&command.phone_number)?;
        check_display_name(&command.display_name)?;
        for _ in 0..DECISIONS {
            let at = now();
            let user = match self.registered(&command.phone_number).await? {
                Some(Registered { user, .. }) if is_in_use(&user, command) => {
                    let why = format!("'{}' is registered; sign in instead", command.phone_number);
                    return Err(Refusal::new(Code::Conflict, why).into());
                }
                Some(Registered { user, verification }) => {
                    self.renew(command, user, verification, at).await?
                }
                None => self.sign_up(command, at).await?,
            };
            if let Some(user) = user {
                let requested = RequestedVerification {
                    user_id: user.user_id.clone(),
                    phone_number: user.phone_number.clone(),
                    code: command.code.clone(),
                    expires_at: command.code_expires_at,
                };
                let event = VerificationRequested::of(requested, at);
                return Ok(Outcome::happened(Answer::User(user.into()), &event, VERIFICATION));
            }
        }
        Err(keeps_changing(REGISTER))
    }

    async fn registered(&self, phone_number: &str) -> Result<Option<Registered>, StageError> {
        let found = users::registered(&self.store, phone_number).await;
        found.map_err(|error| store_error("look who registered a phone number", error))
    }

    async fn sign_up(&self, command: &Register, at: Timestamp) -> Result<Option<User>, StageError> {
        let user = User {
            user_id: command.user_id.clone(),
            phone_number: command.phone_number.clone(),
            phone_verified: false,
            display_name: command.display_name.clone(),
            created_at: at,
            updated_at: at,
        };
        let writes =
            users::register_writes(&user, &command.password_hash, &code(command, &user.user_id)).into();
        let answer = self.store.transact(Transaction { writes, token: None }).await;
        let done = was_done(answer).map_err(|error| store_error(REGISTER, error))?;
        Ok(done.map(|()| user))
    }

    /// `None` if somebody else did, or proved the number, meanwhile.
    async fn renew(
        &self,
        command: &Register,
        user: User,
        last: Option<Verification>,
        at: Timestamp,
    ) -> Result<Option<User>, Unable> {
        let code = code(command, &user.user_id);
        // The code of the same command is its own.
        if let Some(last) = last.as_ref().filter(|last| last.is_awaited(at) && last.code.hash != code.hash) {
            let (number, until) = (&command.phone_number, last.code.expires_at);
            let why = format!("a code was sent to '{number}'; enter it, or register again after {until}");
            return Err(Refusal::new(Code::Conflict, why).into());
        }
        let codes = (last.as_ref().map(|last| &last.code.hash), &code);
        let write =
            users::renew_write(&user.user_id, &command.display_name, &command.password_hash, codes, at);
        let display_name = command.display_name.clone();
        let done = self.write(REGISTER, write).await?;
        Ok(done.map(|_| User { display_name, updated_at: at, ..user }))
    }

    /// An attempt is counted before it is answered, and believed only while attempts are left; so however many guess
    /// at the same moment, a code stands no more of them.
    pub(super) async fn verify_phone(&self, command: &VerifyPhone) -> Carried {
        check_phone_number(&command.phone_number)?;
        for _ in 0..DECISIONS {
            let Some(Registered { user, verification }) = self.registered(&command.phone_number).await?
            else {
                let why = format!("'{}' is not registered", command.phone_number);
                return Err(Refusal::new(Code::NotFound, why).into());
            };
            let Some(verification) = verification else {
                return Err(register_again("there is no code", None).into());
            };
            let presented = CodeHash::of(&user.user_id, &command.code);
            let is_right = presented == verification.code.hash;
            let is_open = verification.is_open(now());
            let answered = match (user.phone_verified, is_right) {
                // It came twice.
                (true, true) => Some(Outcome::Done(Answer::User(user.into()))),
                (true, false) => return Err(wrong("the phone number is verified already; sign in").into()),
                (false, _) if !is_open => return Err(closed(&verification).into()),
                (false, true) => self.believe(&user.user_id, &presented).await?,
                (false, false) => self.count(&user.user_id, &verification).await?,
            };
            if let Some(answered) = answered {
                return Ok(answered);
            }
        }
        Err(keeps_changing(VERIFY))
    }

    /// `None` if the code was replaced or used up meanwhile.
    async fn believe(&self, user: &UserId, code: &CodeHash) -> Result<Option<Outcome>, Unable> {
        let verified = self.write(VERIFY, users::verify_write(user, code, now())).await?;
        let verified = verified.flatten().as_ref().map(User::from_item).transpose();
        let verified = verified.map_err(|error| store_error(VERIFY, error))?;
        Ok(verified.map(|user| Outcome::Done(Answer::User(user.into()))))
    }

    /// Refuses a wrong code, once that is counted; `None` if the code was replaced or used up meanwhile.
    async fn count(&self, user: &UserId, verification: &Verification) -> Result<Option<Outcome>, Unable> {
        let write = users::count_attempt_write(user, &verification.code.hash);
        if self.write(VERIFY, write).await?.is_none() {
            return Ok(None);
        }
        let left = u64::from(MAX_ATTEMPTS).saturating_sub(verification.attempts + 1);
        Err(match left {
            0 => wrong(&format!(
                "it was the last attempt; register again after {} to get another code",
                verification.code.expires_at
            )),
            1 => wrong("one attempt is left"),
            left => wrong(&format!("{left} attempts are left")),
        }
        .into())
    }
}

/// Whether an account is somebody's who is not to lose it. A command that comes twice finds the account that it made.
fn is_in_use(user: &User, command: &Register) -> bool {
    match command.in_use_from {
        InUseFrom::Verification => user.phone_verified,
        InUseFrom::Registration => user.phone_verified || user.user_id != command.user_id,
    }
}

fn code(command: &Register, user: &UserId) -> NewCode {
    NewCode { hash: CodeHash::of(user, &command.code), expires_at: command.code_expires_at }
}

fn check_phone_number(number: &str) -> Result<(), Refusal> {
    if !is_phone_number(number) {
        let why = "a phone number is written as in E.164, such as +41791234567";
        return Err(Refusal::new(Code::BadRequest, why));
    }
    Ok(())
}

fn wrong(and: &str) -> Refusal {
    Refusal::new(Code::Forbidden, format!("the code is wrong; {and}"))
}

fn register_again(why: &str, after: Option<Timestamp>) -> Refusal {
    let after = after.map(|after| format!(" after {after}")).unwrap_or_default();
    Refusal::new(Code::Forbidden, format!("{why}; register again{after} to get another"))
}

fn closed(verification: &Verification) -> Refusal {
    if verification.is_awaited(now()) {
        register_again("there were too many wrong codes", Some(verification.code.expires_at))
    } else {
        register_again("the code has expired", None)
    }
}
