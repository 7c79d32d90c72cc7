//! How records are kept: those that one group appends to a partition are one entry, named by its first offset.
//!
//! One entry instead of one per record is what lets the log keep up with the disk, and it lets readers have their
//! records without copying them: they are slices of the entry. All records of a chunk have the time of their
//! group.
#![allow(clippy::ref_option_ref, reason = "in what serde derives")]

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::embedded::clock::from_unix_millis;
use crate::log::{Header, LogError, LogRecord, NewRecord};

/// A chunk is closed at this size, so that readers never hold much more than they asked for.
pub(super) const CHUNK_BYTES: usize = 256 * 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ChunkHeader {
    pub(super) count: u32,
    /// Milliseconds since 1970.
    pub(super) at: u64,
}

#[derive(Serialize, Deserialize)]
struct StoredRecord<'a> {
    #[serde(with = "serde_bytes", borrow)]
    key: Option<&'a [u8]>,
    #[serde(with = "serde_bytes")]
    payload: &'a [u8],
    #[serde(borrow)]
    headers: Vec<StoredHeader<'a>>,
}

#[derive(Serialize, Deserialize)]
struct StoredHeader<'a> {
    name: &'a str,
    #[serde(with = "serde_bytes")]
    value: &'a [u8],
}

/// Appends the record as it will stand in its chunk.
pub(super) fn encode_record(record: &NewRecord, out: &mut Vec<u8>) {
    let headers =
        record.headers.iter().map(|header| StoredHeader { name: &header.name, value: &header.value });
    let stored =
        StoredRecord { key: record.key.as_deref(), payload: &record.payload, headers: headers.collect() };
    out.reserve(record.size() + 16);
    let encoded = postcard::to_extend(&stored, std::mem::take(out));
    *out = encoded.expect("a record can always be written to memory");
}

/// A chunk of encoded records.
pub(super) fn encode_chunk(header: ChunkHeader, records: &[u8]) -> Vec<u8> {
    let bytes = Vec::with_capacity(records.len() + 16);
    let mut bytes = postcard::to_extend(&header, bytes).expect("a header can always be written to memory");
    bytes.extend_from_slice(records);
    bytes
}

pub(super) fn decode_header(chunk: &[u8]) -> Result<(ChunkHeader, &[u8]), LogError> {
    postcard::take_from_bytes(chunk).map_err(damaged)
}

/// Reads the records of a chunk one after another.
pub(super) struct ChunkCursor {
    chunk: Bytes,
    /// Where in the chunk the next record begins.
    position: usize,
    header: ChunkHeader,
    next_offset: u64,
    end_offset: u64,
}

impl ChunkCursor {
    pub(super) fn new(base: u64, chunk: Bytes) -> Result<Self, LogError> {
        let (header, records) = decode_header(&chunk)?;
        let position = chunk.len() - records.len();
        Ok(Self { position, header, next_offset: base, end_offset: base + u64::from(header.count), chunk })
    }

    pub(super) fn next_offset(&self) -> u64 {
        self.next_offset
    }

    /// The next record; `None` after the last.
    pub(super) fn next(&mut self) -> Result<Option<LogRecord>, LogError> {
        if self.next_offset == self.end_offset {
            return Ok(None);
        }
        let (stored, rest) =
            postcard::take_from_bytes::<StoredRecord<'_>>(&self.chunk[self.position..]).map_err(damaged)?;
        let headers = stored
            .headers
            .iter()
            .map(|header| Header { name: header.name.into(), value: self.chunk.slice_ref(header.value) });
        let record = LogRecord {
            offset: self.next_offset,
            at: from_unix_millis(self.header.at),
            key: stored.key.map(|key| self.chunk.slice_ref(key)),
            payload: self.chunk.slice_ref(stored.payload),
            headers: headers.collect(),
        };
        self.position = self.chunk.len() - rest.len();
        self.next_offset += 1;
        Ok(Some(record))
    }

    /// Passes over records up to this offset.
    pub(super) fn skip_to(&mut self, offset: u64) -> Result<(), LogError> {
        while self.next_offset < offset.min(self.end_offset) {
            let rest = postcard::take_from_bytes::<StoredRecord<'_>>(&self.chunk[self.position..])
                .map_err(damaged)?
                .1;
            self.position = self.chunk.len() - rest.len();
            self.next_offset += 1;
        }
        Ok(())
    }
}

#[allow(clippy::needless_pass_by_value, reason = "for map_err")]
fn damaged(error: postcard::Error) -> LogError {
    LogError::Damaged(format!("a chunk of the log cannot be read: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_read_back_from_any_offset() {
        let records: Vec<NewRecord> = (0..5u8)
            .map(|n| NewRecord {
                key: (n % 2 == 0).then(|| Bytes::from(vec![n, 0, 0xff])),
                payload: Bytes::from(vec![n; usize::from(n) * 100]),
                headers: (0..n)
                    .map(|h| Header { name: format!("h{h}").into(), value: Bytes::from(vec![h]) })
                    .collect(),
            })
            .collect();
        let mut encoded = Vec::new();
        for record in &records {
            encode_record(record, &mut encoded);
        }
        let chunk = Bytes::from(encode_chunk(ChunkHeader { count: 5, at: 7 }, &encoded));
        for from in 10..=15u64 {
            let mut cursor = ChunkCursor::new(10, chunk.clone()).unwrap();
            cursor.skip_to(from).unwrap();
            for offset in from..15 {
                let record = cursor.next().unwrap().unwrap();
                let written = &records[usize::try_from(offset - 10).unwrap()];
                assert_eq!((record.offset, record.at), (offset, from_unix_millis(7)));
                assert_eq!(
                    (&record.key, &record.payload, &record.headers),
                    (&written.key, &written.payload, &written.headers)
                );
            }
            assert_eq!(cursor.next().unwrap(), None);
        }
    }

    #[test]
    fn a_cut_chunk_is_an_error() {
        let mut record = Vec::new();
        let new = NewRecord { payload: Bytes::from_static(&[1; 50]), ..NewRecord::default() };
        encode_record(&new, &mut record);
        let chunk = encode_chunk(ChunkHeader { count: 1, at: 0 }, &record);
        let mut cursor = ChunkCursor::new(0, Bytes::from(chunk[..chunk.len() - 1].to_vec())).unwrap();
        assert!(matches!(cursor.next(), Err(LogError::Damaged(_))));
    }
}
