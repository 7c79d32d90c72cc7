//! Setting counters; why that is safe is said in the module above.

use courant_connectors::model::ChatId;
use courant_connectors::model::tables::chat_counters;
use courant_connectors::model::tables::chats;
use courant_connectors::model::tables::delivery_state::{self, DeliveryState};
use courant_connectors::store::Consistency;

use super::{Action, Counter, CounterReport, Fault, Highest, Seen, Work};
use crate::verify::chats::members_of;
use crate::verify::context::{Context, now};
use crate::verify::{Result, delivery};
use crate::writes::{Written, transact};

/// One who is refused looks again; it was somebody else who set the counter, so one more look is nearly always enough.
const LOOKS: u32 = 5;
/// Looks after a grace period each, while late writers come through.
const SECOND_LOOKS: u32 = 3;

impl Work {
    /// Sets the counter, or tells what it would be set to. Nothing if it is in order meanwhile.
    pub(super) async fn recover(&self, context: &Context, chat: &ChatId) -> Result<Option<CounterReport>> {
        let mut report = None;
        for _ in 0..LOOKS {
            let highest = self.highest_of_all(context, chat).await?;
            let item = context.reads.get(chat_counters::lookup(chat, Consistency::Strong)).await?;
            let counter = Counter::of(item.as_ref());
            let Some(fault) = counter.fault(highest.sequence) else { return Ok(None) };
            let report = report.insert(CounterReport::new(chat, fault, counter, highest));
            let target = highest.sequence.saturating_add(self.options.margin);
            match (fault, self.options.action) {
                (Fault::Unreadable | Fault::NoChat, _) | (_, Action::Check) => break,
                (_, Action::DryRun) => {
                    report.would_be = Some(target);
                    break;
                }
                (Fault::Missing | Fault::Behind, Action::Recover) => {}
            }
            let writes = vec![chats::still_formed(chat), chat_counters::recover_write(chat, target, now())];
            if transact(&self.store, "recover a counter", writes).await? == Written::Done {
                tracing::warn!(%chat, sequence = target, "recovered a sequence counter");
                report.set_to = Some(target);
                break;
            }
        }
        Ok(report)
    }

    /// Everything that anybody can have seen: messages, events, and what members have acknowledged.
    pub(super) async fn highest_of_all(&self, context: &Context, chat: &ChatId) -> Result<Highest> {
        let members = members_of(context, chat).await?;
        let lookup = |user| {
            let mut get = delivery_state::lookup(user, chat);
            get.consistency = Consistency::Strong;
            get
        };
        let states = context.reads.get_all(members.iter().map(|member| lookup(&member.user_id)).collect());
        let states = states.await?;
        let states = states.iter().flatten().filter_map(|item| DeliveryState::from_item(item).ok());
        let acknowledged = states.map(|state| delivery::highest(&state)).max().unwrap_or(0);
        // Last, since messages may still come.
        let messages = self.highest_of_messages(context, chat).await?;
        Ok(messages.or(Highest { sequence: acknowledged, seen: Seen::Watermarks }))
    }

    /// Whether a late writer came through beyond a counter that was recovered; then it is raised again.
    pub(super) async fn look_again(&self, context: &Context) -> Result<()> {
        let mut recovered = self.findings.recovered();
        for _ in 0..SECOND_LOOKS {
            if recovered.is_empty() {
                return Ok(());
            }
            context.pause(self.options.grace).await?;
            let mut behind = Vec::new();
            for chat in recovered {
                let highest = self.highest_of_messages(context, &chat).await?;
                let item = context.reads.get(chat_counters::lookup(&chat, Consistency::Strong)).await?;
                if Counter::of(item.as_ref()).fault(highest.sequence).is_some()
                    && let Some(again) = self.recover(context, &chat).await?
                {
                    self.findings.raised(&again);
                    behind.push(chat);
                }
                context.advance(1);
            }
            recovered = behind;
        }
        Ok(())
    }
}
