//! Appending records, in the order of their keys whatever happens.
//!
//! librdkafka's own message time-out would give up one record and send the next of the same key. So records
//! never time out in its queue: a call that waited long enough answers [`LogError::UnknownOutcome`] and its
//! records stay where they are, to be appended in order when the brokers are back. Later calls wait for such
//! left behind records of their keys, so that a retry adds at most one copy of each however long the brokers
//! are away. The queue is bounded; a full one makes callers wait.
//!
//! What this cannot prevent: a broker that refuses a record for good (its size, a policy) after a later batch
//! with the same key was sent already. Sizes and topics are checked before anything is sent for that reason.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::message::{Header as NativeHeader, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use tokio::time::{Instant, timeout, timeout_at};

use super::config::{millis, unless_set};
use super::delivery::{Call, Deliveries, Delivery, LeftBehind};
use super::error::{from_delivery, from_setting_up};
use crate::log::{Appended, LogError, MAX_RECORD_BYTES, NewRecord, Result, Topic};

type Client = BaseProducer<Deliveries>;

/// Records waiting in the client, of all calls together. Full: callers wait for room.
const QUEUE_RECORDS: &str = "100000";
const QUEUE_KILOBYTES: &str = "65536";

/// What brokers accept unless told otherwise: a record of [`MAX_RECORD_BYTES`] and what the protocol adds to
/// it.
const MESSAGE_BYTES: &str = "1048588";

/// Handing a record over takes about a microsecond: the worker is given back several thousand times a second.
const RECORDS_BETWEEN_YIELDS: usize = 128;

/// With every answer a caller looks for room at once; this is for the last of them.
const LOOK_FOR_ROOM: Duration = Duration::from_millis(2);

pub(super) struct Producer {
    settings: ClientConfig,
    /// Replaced when librdkafka declares it broken for good.
    client: Mutex<Arc<Client>>,
    left_behind: Arc<LeftBehind>,
    timeout: Duration,
}

impl Producer {
    pub(super) fn new(client: &ClientConfig, timeout: Duration) -> Result<Self> {
        let mut settings = client.clone();
        settings
            .set("enable.idempotence", "true")
            .set("acks", "all")
            .set("partitioner", "murmur2_random")
            .set("message.timeout.ms", "0")
            .set("request.timeout.ms", millis(timeout));
        unless_set(&mut settings, "message.max.bytes", MESSAGE_BYTES);
        unless_set(&mut settings, "queue.buffering.max.messages", QUEUE_RECORDS);
        unless_set(&mut settings, "queue.buffering.max.kbytes", QUEUE_KILOBYTES);
        // whoever calls has a batch already, and somebody waits for its answer
        unless_set(&mut settings, "linger.ms", "0");
        let left_behind = Arc::<LeftBehind>::default();
        let client = Mutex::new(Arc::new(connect(&settings, &left_behind)?));
        Ok(Self { settings, client, left_behind, timeout })
    }

    /// Lets answers reach the calls that wait for them, for as long as `span`. On a thread of its own.
    pub(super) fn serve(&self, span: Duration) {
        self.client().poll(span);
    }

    /// Waits for what is on its way, at most for as long as a call would.
    pub(super) fn flush(&self) {
        if let Err(error) = self.client().flush(self.timeout) {
            tracing::warn!(%error, "records were still on their way to kafka when it was closed");
        }
    }

    pub(super) async fn produce(&self, topic: &Topic, records: &[NewRecord]) -> Vec<Result<Appended>> {
        let call = Arc::new(Call::new(topic, records, &self.left_behind));
        let waiting = AbandonedOnDrop(Arc::clone(&call));
        let deadline = Instant::now() + self.timeout;
        self.left_behind.wait_for(topic, records, deadline).await;
        self.hand_over(&call, records, deadline).await;
        // a time of its own: the brokers are not to blame for a queue that was full
        let _ = timeout_at(Instant::now() + self.timeout, call.answered()).await;
        drop(waiting);
        call.take_answers(self.timeout)
    }

    async fn hand_over(&self, call: &Arc<Call>, records: &[NewRecord], deadline: Instant) {
        let client = self.client();
        let mut failed = HashSet::new();
        for (index, record) in records.iter().enumerate() {
            if index % RECORDS_BETWEEN_YIELDS == RECORDS_BETWEEN_YIELDS - 1 {
                tokio::task::yield_now().await;
            }
            call.add_failed_keys(&mut failed);
            let outcome = match &record.key {
                Some(key) if failed.contains(key) => Err(LogError::EarlierFailed),
                _ => self.send(&client, call, index, record, deadline).await,
            };
            if let Err(error) = outcome {
                failed.extend(record.key.clone());
                call.answer(index, Err(error));
            }
        }
    }

    async fn send(
        &self,
        client: &Arc<Client>,
        call: &Arc<Call>,
        index: usize,
        record: &NewRecord,
        deadline: Instant,
    ) -> Result<()> {
        check(record)?;
        if self.left_behind.holds(&call.topic, record) {
            return Err(LogError::Unavailable(
                "earlier records of the same key are still on their way".to_owned(),
            ));
        }
        loop {
            // asked before the attempt, so that room that comes in between is not missed
            let room = self.left_behind.room.notified();
            let Err(error) = try_send(client, call, index, record) else { return Ok(()) };
            match error.rdkafka_error_code() {
                Some(Code::QueueFull) if Instant::now() < deadline => {
                    // the answer that makes room is told a moment before the room is there
                    let _ = timeout(LOOK_FOR_ROOM, room).await;
                }
                Some(Code::QueueFull) => {
                    return Err(LogError::Unavailable("the queue to the brokers stays full".to_owned()));
                }
                // Earlier records of the call may still fail in the old client: with the new one a later record of
                // their key would get ahead of them.
                Some(Code::Fatal) => {
                    self.replace(client)?;
                    return Err(LogError::Unavailable("the producer had to start anew".to_owned()));
                }
                Some(code) => return Err(from_delivery(code, &call.topic, record.size())),
                None => return Err(LogError::Invalid(format!("cannot send the record: {error}"))),
            }
        }
    }

    fn client(&self) -> Arc<Client> {
        Arc::clone(&self.client.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Starts anew after the sequence of an idempotent producer broke. What the old one had gets its answers
    /// when it is dropped.
    fn replace(&self, broken: &Arc<Client>) -> Result<()> {
        let mut client = self.client.lock().unwrap_or_else(PoisonError::into_inner);
        if Arc::ptr_eq(&client, broken) {
            tracing::warn!(reason = ?broken.client().fatal_error(), "kafka producer starts anew");
            let new = Arc::new(connect(&self.settings, &self.left_behind)?);
            let old = std::mem::replace(&mut *client, new);
            tokio::task::spawn_blocking(move || take_apart(old));
        }
        Ok(())
    }
}

/// A call that is dropped or out of patience leaves its records to the client.
struct AbandonedOnDrop(Arc<Call>);

impl Drop for AbandonedOnDrop {
    fn drop(&mut self) {
        self.0.abandon();
    }
}

/// Dropping a client waits for its last answers and its threads, so whoever sends must not be the last to have it.
fn take_apart(mut client: Arc<Client>) {
    loop {
        match Arc::try_unwrap(client) {
            Ok(alone) => return drop(alone),
            Err(shared) => client = shared,
        }
        // nobody unparks it: this is a pause on a thread that is there to be blocked
        std::thread::park_timeout(LOOK_FOR_ROOM);
    }
}

fn connect(settings: &ClientConfig, left_behind: &Arc<LeftBehind>) -> Result<Client> {
    settings.create_with_context(Deliveries(Arc::clone(left_behind))).map_err(from_setting_up)
}

fn check(record: &NewRecord) -> Result<()> {
    let bytes = record.size();
    if bytes > MAX_RECORD_BYTES {
        return Err(LogError::TooLarge { bytes, limit: MAX_RECORD_BYTES });
    }
    // librdkafka reads names up to a zero byte, so the rest would silently be missing
    if let Some(header) = record.headers.iter().find(|header| header.name.contains('\0')) {
        return Err(LogError::Invalid(format!("header {:?} has a zero byte in its name", header.name)));
    }
    Ok(())
}

fn try_send(
    client: &Client,
    call: &Arc<Call>,
    index: usize,
    record: &NewRecord,
) -> std::result::Result<(), KafkaError> {
    let delivery = Box::new(Delivery { call: Arc::clone(call), index, bytes: record.size() });
    let mut native = BaseRecord::<[u8], [u8], _>::with_opaque_to(call.topic.as_str(), delivery);
    native.payload = Some(&record.payload);
    native.key = record.key.as_deref();
    if !record.headers.is_empty() {
        let headers = OwnedHeaders::new_with_capacity(record.headers.len());
        native.headers = Some(record.headers.iter().fold(headers, |headers, header| {
            headers.insert(NativeHeader { key: header.name.as_str(), value: Some(&header.value[..]) })
        }));
    }
    call.on_its_way(index);
    client.send(native).map_err(|(error, _)| {
        call.not_sent(index);
        error
    })
}
