//! Pipelines in a few lines: each command is carried out on the store, with as much care as the tests look for.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};

use courant_connectors::embedded::Engine;
use courant_connectors::model::commands::{
    Answer, ChatAnswer, Code, Command, CreateChat, InUseFrom, OpenSession, REST, Refusal, Register,
    RotateSession, SendMessage, Sent, SessionAnswer,
};
use courant_connectors::model::tables::chat_counters::{self, ChatCounter};
use courant_connectors::model::tables::chat_memberships::{self, Membership, Role};
use courant_connectors::model::tables::chats::{self, Chat};
use courant_connectors::model::tables::delivery_state;
use courant_connectors::model::tables::messages::{self, Message};
use courant_connectors::model::tables::sessions::{self, Rotation, Session, Token};
use courant_connectors::model::tables::users::{self, CodeHash, Edit, NewCode, User};
use courant_connectors::model::{MessageId, Timestamp};
use courant_connectors::store::{Transaction, Write, WriteStore as _};
use courant_pipeline::intake::Intake;
use courant_pipeline::{Disposition, Json, Payload, Reply, clock};

/// Serves every command at the door of REST until the test ends.
pub(super) async fn start(intake: &Intake, engine: Arc<Engine>, scripted: Arc<Mutex<VecDeque<Answer>>>) {
    let names = Command::NAMES.map(str::to_owned);
    let mut requests = intake.serve(REST, &names).await.unwrap();
    let mut pipelines = Pipelines { engine, codes: HashMap::new(), sent: HashMap::new() };
    tokio::spawn(async move {
        loop {
            for request in requests.next(16).await {
                let command = request.record.payload.decode::<Json<Command>>().unwrap().0.clone();
                let script = scripted.lock().unwrap().pop_front();
                let answer = match script {
                    Some(answer) => answer,
                    None => pipelines.carry_out(command).await.unwrap_or_else(Answer::Refused),
                };
                let receipt = Some(Box::new(Payload::value(Json(answer))));
                let _ =
                    request.reply.send(Reply { disposition: Disposition::Delivered, reason: None, receipt });
            }
        }
    });
}

struct Pipelines {
    engine: Arc<Engine>,
    /// By phone number.
    codes: HashMap<String, String>,
    /// By chat and client message id.
    sent: HashMap<(String, String), (String, Sent)>,
}

fn refuse<T>(code: Code) -> Result<T, Refusal> {
    Err(Refusal::new(code, "the pipeline refuses"))
}

fn now() -> Timestamp {
    clock::now().into()
}

impl Pipelines {
    async fn carry_out(&mut self, command: Command) -> Result<Answer, Refusal> {
        let engine = Arc::clone(&self.engine);
        match command {
            Command::Register(command) => self.register(command).await,
            Command::VerifyPhone(command) => {
                if self.codes.get(&command.phone_number) != Some(&command.code) {
                    return refuse(Code::Forbidden);
                }
                let user = users::by_phone(&*engine, &command.phone_number).await.unwrap().unwrap();
                let user = users::edit(&*engine, &user, Edit::PhoneVerified, now()).await.unwrap();
                Ok(Answer::User(user.unwrap().into()))
            }
            Command::OpenSession(command) => self.open_session(command).await,
            Command::RotateSession(command) => self.rotate(command).await,
            Command::EndSessions(command) => {
                match command.session_id {
                    Some(session) => drop(sessions::revoke(&*engine, &session).await.unwrap()),
                    None => drop(sessions::revoke_all(&*engine, &command.user_id).await.unwrap()),
                }
                Ok(Answer::Done)
            }
            Command::EditProfile(command) => {
                let edit = Edit::DisplayName(command.display_name);
                let user = users::edit(&*engine, &command.user_id, edit, now()).await.unwrap();
                Ok(Answer::User(user.unwrap().into()))
            }
            Command::SendMessage(command) => self.send(command).await,
            Command::CreateChat(command) => self.create(command).await,
            Command::RenameChat(command) => {
                match chats::rename(&*engine, &command.chat_id, &command.name, now()).await.unwrap() {
                    Some(chat) => Ok(Answer::Chat(ChatAnswer::new(chat, Vec::new()))),
                    None => refuse(Code::NotFound),
                }
            }
            Command::AddMember(command) => {
                let membership = Membership {
                    chat_id: command.chat_id,
                    user_id: command.user_id,
                    role: command.role,
                    joined_at: now(),
                    muted_until: None,
                };
                chat_memberships::add(&*engine, &membership).await.unwrap();
                Ok(Answer::Member(membership.into()))
            }
            Command::RemoveMember(command) => {
                let removed = chat_memberships::remove(&*engine, &command.chat_id, &command.user_id).await;
                if removed.unwrap().is_some() { Ok(Answer::Done) } else { refuse(Code::NotFound) }
            }
            Command::SetRole(command) => {
                let set =
                    chat_memberships::set_role(&*engine, &command.chat_id, &command.user_id, command.role)
                        .await;
                set.unwrap().map_or(refuse(Code::NotFound), |member| Ok(Answer::Member(member.into())))
            }
            Command::Ack(command) => {
                let (user, chat) = (&command.user_id, &command.chat_id);
                delivery_state::advance(&*engine, user, chat, command.sequence, now()).await.unwrap();
                Ok(Answer::Done)
            }
        }
    }

    async fn register(&mut self, command: Register) -> Result<Answer, Refusal> {
        if let Some(user) = users::by_phone(&*self.engine, &command.phone_number).await.unwrap() {
            let user = users::get(&*self.engine, &user).await.unwrap().unwrap();
            if user.phone_verified || command.in_use_from == InUseFrom::Registration {
                return refuse(Code::Conflict);
            }
            return Ok(Answer::User(user.into()));
        }
        self.codes.insert(command.phone_number.clone(), command.code.clone());
        let user = User {
            user_id: command.user_id,
            phone_number: command.phone_number,
            phone_verified: false,
            display_name: command.display_name,
            created_at: now(),
            updated_at: now(),
        };
        let hash = CodeHash::of(&user.user_id, &command.code);
        let code = NewCode { hash, expires_at: command.code_expires_at };
        let writes = users::register_writes(&user, &command.password_hash, &code);
        self.engine.transact(Transaction { writes: writes.into(), token: None }).await.unwrap();
        Ok(Answer::User(user.into()))
    }

    async fn open_session(&self, command: OpenSession) -> Result<Answer, Refusal> {
        let session = Session {
            session_id: command.session_id,
            user_id: command.user_id,
            device_id: command.device_id,
            device_name: command.device_name,
            refresh_token_hash: command.refresh_token_hash,
            spent: Vec::new(),
            created_at: now(),
            last_used_at: now(),
            expires_at: command.expires_at,
        };
        sessions::create(&*self.engine, &session).await.unwrap();
        Ok(signed_in(session))
    }

    /// A token that is not the session's was spent before.
    async fn rotate(&self, command: RotateSession) -> Result<Answer, Refusal> {
        let engine = &*self.engine;
        let Some(session) = sessions::current(engine, &command.session_id, now()).await.unwrap() else {
            return refuse(Code::Unauthenticated);
        };
        if session.token(&command.spent_hash) != Token::Current {
            sessions::revoke(engine, &command.session_id).await.unwrap();
            return refuse(Code::Unauthenticated);
        }
        let rotation = Rotation { new_hash: command.new_hash, at: now(), expires_at: command.expires_at };
        let rotated = sessions::rotate(engine, &session, &rotation).await.unwrap();
        Ok(signed_in(rotated.unwrap()))
    }

    async fn create(&self, command: CreateChat) -> Result<Answer, Refusal> {
        let chat = Chat {
            chat_id: command.chat_id.clone(),
            chat_type: command.chat_type,
            name: command.name,
            created_by: command.created_by.clone(),
            created_at: now(),
            updated_at: now(),
        };
        let members: Vec<Membership> = std::iter::once(command.created_by)
            .chain(command.members)
            .enumerate()
            .map(|(at, user_id)| Membership {
                chat_id: command.chat_id.clone(),
                user_id,
                role: if at == 0 { Role::Owner } else { Role::Member },
                joined_at: now(),
                muted_until: None,
            })
            .collect();
        for membership in &members {
            self.write(chat_memberships::add_write(membership)).await;
        }
        chat_counters::create(&*self.engine, &ChatCounter::new(command.chat_id, now())).await.unwrap();
        self.write(chats::create_write(&chat)).await;
        Ok(Answer::Chat(ChatAnswer::new(chat, members.into_iter().map(Into::into).collect())))
    }

    async fn send(&mut self, command: SendMessage) -> Result<Answer, Refusal> {
        let membership = chat_memberships::check(&*self.engine, &command.chat_id, &command.sender_id).await;
        if membership.unwrap().is_none() {
            return refuse(Code::NotAMember);
        }
        let key = (command.chat_id.to_string(), command.client_message_id.to_string());
        if let Some((content, sent)) = self.sent.get(&key) {
            let again = Answer::Sent(Sent { deduplicated: true, ..sent.clone() });
            return if *content == command.content { Ok(again) } else { refuse(Code::IdempotencyMismatch) };
        }
        let one = std::num::NonZeroU32::MIN;
        let sequence = chat_counters::allocate(&*self.engine, &command.chat_id, one, now()).await.unwrap();
        let message = Message {
            chat_id: command.chat_id,
            sequence: *sequence.start(),
            message_id: MessageId::generate(),
            sender_id: command.sender_id,
            client_message_id: command.client_message_id,
            content: command.content,
            content_type: command.content_type,
            created_at: now(),
        };
        self.write(messages::put_write(&message)).await;
        let sent = Sent {
            message_id: message.message_id,
            chat_id: message.chat_id,
            sequence: message.sequence,
            created_at: message.created_at,
            deduplicated: false,
        };
        self.sent.insert(key, (message.content.into(), sent.clone()));
        Ok(Answer::Sent(sent))
    }

    async fn write(&self, write: Write) {
        let one = Transaction { writes: vec![write], token: None };
        self.engine.transact(one).await.unwrap();
    }
}

fn signed_in(session: Session) -> Answer {
    Answer::Session(SessionAnswer {
        session_id: session.session_id,
        user_id: session.user_id,
        device_id: session.device_id,
    })
}
