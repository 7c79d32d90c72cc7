//! What is said over a relay's connection: one JSON object a line.

use std::collections::BTreeMap;
use std::io;

use courant_pipeline::{Disposition, Payload, Record, Reply};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use tokio::io::{AsyncBufRead, AsyncBufReadExt as _};

/// The largest command or answer: a group of a thousand with its members, and room.
pub(super) const MAX_LINE: usize = 1 << 20;

/// The first line of a gateway.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Hello {
    pub(super) relay: u32,
    pub(super) secret: String,
}

/// The version both sides speak.
pub(super) const VERSION: u32 = 1;

/// The first line of the other side.
#[derive(Serialize, Deserialize)]
pub(super) struct Welcome {
    pub(super) relay: u32,
}

/// Whether two secrets are the same, in a time that does not tell how much of them is.
pub(super) fn same_secret(one: &str, other: &str) -> bool {
    Sha256::digest(one).ct_eq(&Sha256::digest(other)).into()
}

#[derive(Serialize, Deserialize)]
pub(super) struct Asked {
    pub(super) id: u64,
    pub(super) door: String,
    pub(super) command: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) key: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) headers: BTreeMap<String, String>,
    pub(super) payload: Box<RawValue>,
}

impl Asked {
    pub(super) fn new(
        id: u64,
        door: &str,
        command: &str,
        record: &Record,
    ) -> Result<Self, serde_json::Error> {
        let headers = record.headers.iter().map(|(name, value)| (name.to_owned(), value.to_owned()));
        Ok(Self {
            id,
            door: door.to_owned(),
            command: command.to_owned(),
            key: record.key.as_ref().map(|key| key.as_str().to_owned()),
            headers: headers.collect(),
            payload: raw(&record.payload)?,
        })
    }

    pub(super) fn into_record(self) -> Record {
        let mut record = Record::new(self.payload.get().to_owned());
        if let Some(key) = self.key {
            record = record.with_key(key);
        }
        for (name, value) in self.headers {
            record.headers.set(name, value);
        }
        record
    }
}

/// The end of a record, or that nobody took it.
#[derive(Serialize, Deserialize)]
pub(super) struct Answered {
    pub(super) id: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    disposition: Option<Disposition>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    receipt: Option<Box<RawValue>>,
}

impl Answered {
    /// What became of a record; `None` if it was given up unread.
    pub(super) fn new(id: u64, reply: Option<&Reply>) -> Self {
        Self {
            id,
            disposition: reply.map(|reply| reply.disposition),
            reason: reply.and_then(|reply| reply.reason.as_deref().map(str::to_owned)),
            receipt: reply.and_then(|reply| raw(reply.receipt.as_deref()?).ok()),
        }
    }

    pub(super) fn into_reply(self) -> Option<Reply> {
        Some(Reply {
            disposition: self.disposition?,
            reason: self.reason.map(Into::into),
            receipt: self.receipt.map(|receipt| Box::new(Payload::from(receipt.get().to_owned()))),
        })
    }
}

fn raw(payload: &Payload) -> Result<Box<RawValue>, serde_json::Error> {
    serde_json::from_slice(&payload.to_json())
}

/// A line with its end, for what will be written.
pub(super) fn line(value: &impl Serialize) -> Result<Vec<u8>, serde_json::Error> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    Ok(line)
}

/// The next line without its end; `None` at the end of the connection. Lines over the limit are an error: what comes
/// after them cannot be told from them.
pub(super) async fn read_line<'a>(
    from: &mut (impl AsyncBufRead + Unpin),
    line: &'a mut Vec<u8>,
) -> io::Result<Option<&'a [u8]>> {
    line.clear();
    loop {
        let waiting = from.fill_buf().await?;
        if waiting.is_empty() {
            return Ok(None);
        }
        let end = waiting.iter().position(|byte| *byte == b'\n');
        let taken = end.unwrap_or(waiting.len());
        if line.len() + taken > MAX_LINE {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a line is over the limit"));
        }
        line.extend_from_slice(&waiting[..taken]);
        from.consume(taken + usize::from(end.is_some()));
        if end.is_some() {
            return Ok(Some(line));
        }
    }
}

/// The next line as what it must be.
pub(super) async fn read<T: serde::de::DeserializeOwned>(
    from: &mut (impl AsyncBufRead + Unpin),
    buffer: &mut Vec<u8>,
) -> io::Result<Option<T>> {
    let Some(line) = read_line(from, buffer).await? else { return Ok(None) };
    serde_json::from_slice(line).map(Some).map_err(io::Error::from)
}
