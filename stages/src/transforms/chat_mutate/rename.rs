//! Another name for a group.

use courant_connectors::model::commands::{Answer, ChatAnswer, RenameChat};
use courant_connectors::model::tables::chat_memberships;
use courant_connectors::model::tables::chats::{self, Chat, ChatType};
use courant_connectors::store::ReadStore as _;

use super::{Chats, check_name, forbidden, formed, looked, manages, membership, not_a_member, now};
use crate::commands::{Carried, DECISIONS, Outcome, keeps_changing};

const RENAME: &str = "rename the chat";

impl Chats {
    pub(super) async fn rename(&self, command: &RenameChat) -> Carried {
        let RenameChat { chat_id, by, name } = command;
        check_name(name)?;
        for _ in 0..DECISIONS {
            let asked = vec![chats::state_lookup(chat_id), chat_memberships::lookup(chat_id, by)];
            let found = looked(self.store.batch_get(asked).await)?;
            let chat = formed(found[0].as_ref(), chat_id)??.chat;
            let Some(caller) = membership(found[1].as_ref())? else {
                return Err(not_a_member(by, chat_id).into());
            };
            if chat.chat_type == ChatType::Direct {
                return Err(forbidden("a direct chat has no name").into());
            }
            if !manages(caller.role) {
                return Err(forbidden("only owners and admins rename a chat").into());
            }
            let at = now();
            let writes = vec![
                chats::rename_write(chat_id, name, at),
                chat_memberships::still_has_role(chat_id, by, caller.role),
            ];
            if self.transact(RENAME, writes).await?.is_some() {
                let renamed = Chat { name: Some(name.clone()), updated_at: at, ..chat };
                return Ok(Outcome::Done(Answer::Chat(ChatAnswer::new(renamed, Vec::new()))));
            }
        }
        Err(keeps_changing(RENAME))
    }
}
