//! Who listens to what, within this process.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bytes::Bytes;

use super::lock;
use crate::live::{Channel, Heard, Limits, Listener, ListenerQueue, Result};

/// Publishing holds the lock for a whole batch, so that all listeners hear the same order.
#[derive(Default)]
pub(super) struct Channels(Mutex<HashMap<Channel, Vec<Arc<ListenerQueue>>>>);

impl Channels {
    pub(super) fn publish(&self, messages: &[(Channel, Bytes)]) -> Vec<u64> {
        let channels = lock(&self.0);
        let publish = |(channel, payload): &(Channel, Bytes)| {
            let listeners = channels.get(channel).map_or(&[][..], Vec::as_slice);
            for listener in listeners {
                listener.push(Heard::Message { channel: channel.clone(), payload: payload.clone() });
            }
            listeners.len() as u64
        };
        messages.iter().map(publish).collect()
    }

    pub(super) fn subscribe(this: &Arc<Self>, channels: &[Channel], limits: Limits) -> MemoryListener {
        let channels: BTreeSet<Channel> = channels.iter().cloned().collect();
        let queue = Arc::new(ListenerQueue::new(limits));
        let mut listeners = lock(&this.0);
        for channel in &channels {
            listeners.entry(channel.clone()).or_default().push(Arc::clone(&queue));
        }
        drop(listeners);
        MemoryListener { queue, channels, listens_to: Arc::clone(this) }
    }
}

pub(super) struct MemoryListener {
    queue: Arc<ListenerQueue>,
    channels: BTreeSet<Channel>,
    listens_to: Arc<Channels>,
}

#[async_trait]
impl Listener for MemoryListener {
    async fn next(&mut self) -> Result<Heard> {
        Ok(self.queue.next().await)
    }
}

impl Drop for MemoryListener {
    fn drop(&mut self) {
        let mut listeners = lock(&self.listens_to.0);
        for channel in &self.channels {
            if let Some(queues) = listeners.get_mut(channel) {
                queues.retain(|queue| !Arc::ptr_eq(queue, &self.queue));
                if queues.is_empty() {
                    listeners.remove(channel);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_listener_leaves_nothing_behind() {
        let channels = Arc::<Channels>::default();
        let [one, two] = ["one", "two"].map(Channel::named);
        let first = Channels::subscribe(&channels, &[one.clone(), one.clone(), two], Limits::default());
        let second = Channels::subscribe(&channels, std::slice::from_ref(&one), Limits::default());
        assert_eq!(channels.publish(&[(one.clone(), Bytes::new())]), [2]);
        drop(first);
        assert_eq!(channels.publish(&[(one, Bytes::new())]), [1]);
        drop(second);
        assert!(lock(&channels.0).is_empty());
    }
}
