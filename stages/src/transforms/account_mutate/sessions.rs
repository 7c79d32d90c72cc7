//! Sessions: one for each device that somebody is signed in on.

use courant_connectors::model::commands::{
    Answer, Code, EndSessions, OpenSession, Refusal, RotateSession, SessionAnswer,
};
use courant_connectors::model::tables::sessions::{self, Rotation, Session, Token};
use courant_connectors::model::{SessionId, UserId};
use courant_connectors::store::StoreError;
use courant_pipeline::StageError;

use super::cut_off::Ended;
use super::{Accounts, now};
use crate::backends::store_error;
use crate::commands::{Carried, DECISIONS, Outcome, Unable, keeps_changing, was_done};

const OPEN: &str = "open a session";
const ROTATE: &str = "renew a refresh token";
const END: &str = "end a session";

impl Accounts {
    /// A device has one session: those it had before end first, as far as the index knows them. One that began a moment
    /// ago may be missed; it ends with the next sign-in of its device.
    pub(super) async fn open_session(&self, command: &OpenSession) -> Carried {
        let earlier = sessions::of_device(&self.store, &command.user_id, &command.device_id).await;
        let mut earlier = failed(OPEN, earlier)?;
        earlier.retain(|session| session.session_id != command.session_id);
        for session in &earlier {
            failed(OPEN, sessions::revoke(&self.store, &session.session_id).await)?;
        }
        if !earlier.is_empty() {
            self.cut_off(&command.user_id, Ended::These(&earlier)).await;
        }
        let session = new_session(command);
        let created = was_done(sessions::create(&self.store, &session).await);
        if failed(OPEN, created)?.is_none() && !self.is_open(command).await? {
            let why = format!("the id '{}' is another session's", command.session_id);
            return Err(Refusal::new(Code::Conflict, why).into());
        }
        Ok(answer(session))
    }

    /// Whether the session that is there was opened by this command.
    async fn is_open(&self, command: &OpenSession) -> Result<bool, StageError> {
        let found = failed(OPEN, sessions::current(&self.store, &command.session_id, now()).await)?;
        Ok(found.is_some_and(|session| {
            session.user_id == command.user_id
                && session.device_id == command.device_id
                && session.token(&command.refresh_token_hash) == Token::Current
        }))
    }

    pub(super) async fn rotate_session(&self, command: &RotateSession) -> Carried {
        for _ in 0..DECISIONS {
            let at = now();
            let found = sessions::current(&self.store, &command.session_id, at).await;
            let Some(session) = failed(ROTATE, found)? else { return Err(sign_in_again().into()) };
            match session.token(&command.spent_hash) {
                Token::Current => {
                    let (new_hash, expires_at) = (command.new_hash.clone(), command.expires_at);
                    let rotation = Rotation { new_hash, at, expires_at };
                    let rotated = sessions::rotate(&self.store, &session, &rotation).await;
                    if let Some(session) = failed(ROTATE, rotated)? {
                        return Ok(answer(session));
                    }
                }
                // This very command did it, and nobody learned of it: nobody else knows the new token.
                Token::Spent if session.token(&command.new_hash) == Token::Current => {
                    return Ok(answer(session));
                }
                Token::Spent => return Err(self.end_stolen(session).await),
                Token::Unknown => return Err(sign_in_again().into()),
            }
        }
        Err(keeps_changing(ROTATE))
    }

    /// Of two who have the same token one stole it, and nothing tells which: both are out.
    async fn end_stolen(&self, session: Session) -> Unable {
        tracing::warn!(user = %session.user_id, session = %session.session_id, "a spent refresh token came again, the session ends");
        match failed(END, sessions::revoke(&self.store, &session.session_id).await) {
            Ok(_) => {}
            Err(error) => return error.into(),
        }
        self.cut_off(&session.user_id, Ended::These(std::slice::from_ref(&session))).await;
        sign_in_again().into()
    }

    pub(super) async fn end_sessions(&self, command: &EndSessions) -> Carried {
        match &command.session_id {
            Some(session) => self.end_one(&command.user_id, session).await?,
            None => {
                failed(END, sessions::revoke_all(&self.store, &command.user_id).await)?;
                self.cut_off(&command.user_id, Ended::All).await;
            }
        }
        Ok(Outcome::Done(Answer::Done))
    }

    async fn end_one(&self, user: &UserId, session: &SessionId) -> Result<(), Unable> {
        let unknown = || Refusal::new(Code::NotFound, format!("there is no session '{session}'"));
        let found = failed(END, sessions::current(&self.store, session, now()).await)?;
        match found {
            Some(found) if found.user_id == *user => {
                failed(END, sessions::revoke(&self.store, session).await)?;
                self.cut_off(user, Ended::These(std::slice::from_ref(&found))).await;
                Ok(())
            }
            // Somebody else's is nobody's business.
            Some(_) => Err(unknown().into()),
            None => {
                // It may have ended a moment ago by this command, before the gateways were told.
                self.cut_off(user, Ended::Gone(session)).await;
                Err(unknown().into())
            }
        }
    }
}

fn failed<T>(doing: &'static str, answer: Result<T, StoreError>) -> Result<T, StageError> {
    answer.map_err(|error| store_error(doing, error))
}

fn new_session(command: &OpenSession) -> Session {
    let created_at = now();
    Session {
        session_id: command.session_id.clone(),
        user_id: command.user_id.clone(),
        device_id: command.device_id.clone(),
        device_name: command.device_name.clone(),
        refresh_token_hash: command.refresh_token_hash.clone(),
        spent: Vec::new(),
        created_at,
        last_used_at: created_at,
        expires_at: command.expires_at,
    }
}

fn answer(session: Session) -> Outcome {
    let Session { session_id, user_id, device_id, .. } = session;
    Outcome::Done(Answer::Session(SessionAnswer { session_id, user_id, device_id }))
}

/// The same whether the token was spent or never was: who asks with it learns nothing.
fn sign_in_again() -> Refusal {
    Refusal::new(Code::Unauthenticated, "the refresh token is not good any more; sign in again")
}
