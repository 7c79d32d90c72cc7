//! A bounded queue of batches in front of a lane, counted in records.
//!
//! A channel of batches alone would be bounded in batches, whose size varies a thousandfold; permits per record
//! make `buffer` mean what it says.

use std::sync::Arc;

use metrics::Gauge;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{Instant, timeout_at};

use crate::batch::Batch;
use crate::config::BatchLimits;

#[derive(Clone)]
pub(crate) struct QueueSender {
    batches: mpsc::Sender<(Batch, u32)>,
    room: Arc<Semaphore>,
    capacity: u32,
    depth: Gauge,
}

/// The receiving lane has ended, so the pipeline is coming down.
#[derive(Debug)]
pub(crate) struct Closed;

impl QueueSender {
    /// Waits for room: this wait is the backpressure.
    pub(crate) async fn send(&self, batch: Batch) -> Result<(), Closed> {
        let records = batch.len();
        // A batch larger than the whole queue waits for an empty one.
        let permits = u32::try_from(records).unwrap_or(u32::MAX).min(self.capacity);
        self.room.acquire_many(permits).await.map_err(|_| Closed)?.forget();
        self.batches.try_send((batch, permits)).map_err(|_| Closed)?;
        self.depth.increment(records as f64);
        Ok(())
    }
}

pub(crate) struct QueueReceiver {
    batches: mpsc::Receiver<(Batch, u32)>,
    room: Arc<Semaphore>,
    depth: Gauge,
    limits: BatchLimits,
    /// What has been gathered so far; kept here so that dropping a `next` future loses nothing.
    gathered: Batch,
    /// Of what is gathered, so that a large batch is not added up with each part that joins it.
    weight: usize,
    give_up_at: Option<Instant>,
}

pub(crate) fn queue(capacity: usize, limits: BatchLimits, depth: Gauge) -> (QueueSender, QueueReceiver) {
    let capacity = u32::try_from(capacity).unwrap_or(u32::MAX).max(1);
    let room = Arc::new(Semaphore::new(capacity as usize));
    // Every batch holds a record and so a permit: with the permits in hand there is room in the channel.
    let (batches, receiver) = mpsc::channel(capacity as usize);
    let sender = QueueSender { batches, room: Arc::clone(&room), capacity, depth: depth.clone() };
    let gathered = Batch::default();
    (sender, QueueReceiver { batches: receiver, room, depth, limits, gathered, weight: 0, give_up_at: None })
}

impl QueueReceiver {
    /// The next batch: whatever waits, up to the limits, after up to `wait`. None once closed and empty.
    /// Cancel-safe.
    pub(crate) async fn next(&mut self) -> Option<Batch> {
        if self.gathered.is_empty() {
            let (batch, permits) = self.batches.recv().await?;
            self.take(batch, permits);
            self.give_up_at = Some(Instant::now() + self.limits.wait.0);
        }
        while !self.is_full() {
            match self.batches.try_recv() {
                Ok((batch, permits)) => self.take(batch, permits),
                Err(mpsc::error::TryRecvError::Disconnected) => break,
                Err(mpsc::error::TryRecvError::Empty) if self.limits.wait.0.is_zero() => break,
                Err(mpsc::error::TryRecvError::Empty) => {
                    let until = self.give_up_at.unwrap_or_else(Instant::now);
                    match timeout_at(until, self.batches.recv()).await {
                        Ok(Some((batch, permits))) => self.take(batch, permits),
                        Ok(None) | Err(_) => break,
                    }
                }
            }
        }
        self.weight = 0;
        Some(std::mem::take(&mut self.gathered))
    }

    fn take(&mut self, batch: Batch, permits: u32) {
        self.depth.decrement(batch.len() as f64);
        self.room.add_permits(permits as usize);
        self.weight += batch.weight();
        if self.gathered.is_empty() {
            self.gathered = batch;
        } else {
            self.gathered.append(batch);
        }
    }

    fn is_full(&self) -> bool {
        self.gathered.len() >= self.limits.records.get() as usize || self.weight as u64 >= self.limits.bytes.0
    }
}

impl Drop for QueueReceiver {
    fn drop(&mut self) {
        // Wake senders that wait for room in a queue nobody reads any more.
        self.room.close();
        self.batches.close();
        while let Ok((batch, _)) = self.batches.try_recv() {
            self.depth.decrement(batch.len() as f64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::payload::Payload;
    use crate::record::Record;
    use crate::units::{Size, Span};
    use std::num::NonZeroU32;
    use std::time::Duration;
    use tokio::time::advance;

    fn batch(records: usize) -> Batch {
        (0..records).map(|_| Record::new(Payload::from_static("{}"))).collect()
    }

    fn limits(records: u32, wait: Span) -> BatchLimits {
        BatchLimits { records: NonZeroU32::new(records).unwrap(), wait, ..BatchLimits::default() }
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_queue_holds_the_sender_back() {
        let (to, mut from) = queue(4, limits(2, Span::default()), Gauge::noop());
        to.send(batch(4)).await.unwrap();
        let blocked = tokio::time::timeout(Duration::from_secs(1), to.send(batch(1))).await;
        assert!(blocked.is_err());
        assert_eq!(from.next().await.unwrap().len(), 4);
        to.send(batch(9)).await.unwrap(); // larger than the queue, passes when it is empty
    }

    #[tokio::test(start_paused = true)]
    async fn waits_for_a_batch_to_fill_but_not_for_ever() {
        let (to, mut from) = queue(100, limits(3, Span::millis(50)), Gauge::noop());
        to.send(batch(1)).await.unwrap();
        let late = tokio::spawn(async move {
            advance(Duration::from_millis(20)).await;
            to.send(batch(1)).await.unwrap();
            to
        });
        let started = Instant::now();
        assert_eq!(from.next().await.unwrap().len(), 2);
        assert_eq!(started.elapsed(), Duration::from_millis(50));
        drop(late.await.unwrap());
        assert!(from.next().await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_batch_is_full_when_its_bytes_are() {
        let two = batch(2).weight() as u64;
        let limits = BatchLimits { bytes: Size(two * 2), ..limits(100, Span::secs(10)) };
        let (to, mut from) = queue(100, limits, Gauge::noop());
        for _ in 0..5 {
            to.send(batch(2)).await.unwrap();
        }
        drop(to);
        assert_eq!(from.next().await.unwrap().len(), 4);
        assert_eq!(from.next().await.unwrap().len(), 4, "counted anew");
        assert_eq!(from.next().await.unwrap().len(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_cancelled_wait_keeps_what_was_gathered() {
        let (to, mut from) = queue(100, limits(3, Span::secs(10)), Gauge::noop());
        to.send(batch(2)).await.unwrap();
        assert!(tokio::time::timeout(Duration::from_secs(1), from.next()).await.is_err());
        to.send(batch(1)).await.unwrap();
        assert_eq!(from.next().await.unwrap().len(), 3);
    }
}
