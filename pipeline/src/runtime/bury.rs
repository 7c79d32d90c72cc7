//! Puts records aside as dead letters.

use super::Failure;
use super::backoff::Retries;
use super::lane::RunContext;
use super::settle::Dead;
use super::wiring::Node;
use crate::ack::Disposition;
use crate::batch::Acked;
use crate::dead_letter::{DeadLetter, Where};
use crate::error::Class;
use crate::units::Span;

/// Keeps the letters durably, then resolves their records.
///
/// The lane waits for as long as that takes: a record may not end before it is safe, and a full disk is better met
/// with backpressure than with loss. A drain that runs out of time ends the wait and fails the records, so their
/// source offers them again.
pub(crate) async fn bury(context: &RunContext, node: &Node, dead: Vec<Dead>) -> Result<(), Failure> {
    let at = Where { pipeline: &context.pipeline, stage: &node.name, queue: &node.policy.dead_letter_queue };
    let letters: Vec<DeadLetter> =
        dead.iter().map(|dead| DeadLetter::of(&dead.acked.record, &dead.error, dead.attempts, at)).collect();
    let mut retries = Retries::new(Span::millis(100), Span::secs(5));
    while let Err(error) = context.host.dead_letters.put(letters.clone()).await {
        if error.class != Class::Retry {
            return Err(Failure::new(&node.name, error));
        }
        let wait = retries.next();
        context.shared.note_error(&error);
        tracing::error!(pipeline = %context.pipeline, stage = %node.name, %error, ?wait, "cannot keep dead letters, will retry");
        tokio::time::sleep(wait).await;
    }
    node.metrics.dead_letters.increment(letters.len() as u64);
    if let Some(first) = letters.first() {
        // One line a call, however many records: a flood of bad input must not become a flood of logs.
        tracing::warn!(pipeline = %context.pipeline, stage = %node.name, records = letters.len(), error = %first.error, "dead-lettered");
    }
    for (dead, letter) in dead.into_iter().zip(letters) {
        let Acked { record, ack } = dead.acked;
        ack.resolve(Disposition::DeadLettered, Some(&letter.error), record.receipt);
    }
    Ok(())
}
