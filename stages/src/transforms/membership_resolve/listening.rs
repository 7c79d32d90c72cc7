//! Hearing of changes of members, through times when live state is away.

use std::sync::Arc;
use std::time::Duration;

use courant_connectors::live::{Channel, Heard, Listener, LiveError, Subscribe};
use courant_connectors::model::frames::Invalidated;

use super::known::KnownMembers;

/// Pauses before listening is tried again. Meanwhile nothing is remembered, so it need not be soon.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// From the moment a subscription stands, what is learned can be remembered.
pub(super) async fn begin(
    live: &(impl Subscribe + ?Sized),
    known: &KnownMembers,
) -> Result<Box<dyn Listener>, LiveError> {
    let listener = live.subscribe(&[Channel::invalidated_members()]).await?;
    known.listening(true);
    Ok(listener)
}

/// Listens for ever, beginning with what [`begin`] came to.
pub(super) async fn listen(
    live: Arc<dyn Subscribe>,
    known: Arc<KnownMembers>,
    first: Result<Box<dyn Listener>, LiveError>,
) {
    let (mut subscription, mut pause) = (first, FIRST_PAUSE);
    loop {
        match subscription {
            Ok(mut listener) => {
                let error = hear(&mut *listener, &known).await;
                known.listening(false);
                tracing::warn!(%error, "does not hear of changed members any more, will try again");
                pause = FIRST_PAUSE;
            }
            Err(error) => tracing::warn!(%error, ?pause, "cannot listen for changed members, will try again"),
        }
        tokio::time::sleep(pause).await;
        pause = LONGEST_PAUSE.min(pause * 2);
        subscription = begin(&*live, &known).await;
    }
}

async fn hear(listener: &mut dyn Listener, known: &KnownMembers) -> LiveError {
    loop {
        match listener.next().await {
            Ok(Heard::Message { payload, .. }) => match serde_json::from_slice::<Invalidated>(&payload) {
                Ok(invalidated) => known.forget(&invalidated.chat_ids),
                Err(error) => {
                    tracing::warn!(%error, "heard an invalidation that cannot be read, forgets all members");
                    known.forget_all();
                }
            },
            Ok(Heard::Gap) => known.forget_all(),
            Err(error) => return error,
        }
    }
}
