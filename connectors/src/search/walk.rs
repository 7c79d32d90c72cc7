//! Everything that an index holds.

use std::path::Path;

use tantivy::{ReloadPolicy, SegmentReader, TantivyDocument};

use super::SearchError;
use super::folder;
use super::message::Message;
use super::schema::{CREATED_AT, Fields, Numbers, SEQUENCE, VERSION};

/// Blocks of texts that are held at a time; they are read in order, once.
const CACHED_BLOCKS: usize = 1;

/// Shows every message of the index in a folder, in any order. Files that are not as they were written are an error, so
/// that what was shown is what will be found. A folder that was never written to holds nothing.
pub fn walk(folder: &Path, mut each: impl FnMut(&Message<'_>)) -> Result<(), SearchError> {
    let failed = |error| SearchError::of("read", folder, error);
    let Some((index, fields)) = folder::open(folder)? else { return Ok(()) };
    let damaged = index.validate_checksum().map_err(failed)?;
    if let Some(file) = damaged.iter().min() {
        let reason = format!("{} is not as it was written", file.display());
        return Err(SearchError::Damaged { folder: folder.to_owned(), reason });
    }
    let reader = index.reader_builder().reload_policy(ReloadPolicy::Manual).try_into().map_err(failed)?;
    for segment in reader.searcher().segment_readers() {
        let shown = walk_segment(segment, &fields, &mut each).map_err(failed)?;
        if !shown {
            let reason = "a document lacks a part".to_owned();
            return Err(SearchError::Damaged { folder: folder.to_owned(), reason });
        }
    }
    Ok(())
}

/// False if a document is not whole.
fn walk_segment(
    segment: &SegmentReader,
    fields: &Fields,
    each: &mut impl FnMut(&Message<'_>),
) -> tantivy::Result<bool> {
    let columns = segment.fast_fields();
    let [sequences, times, versions] =
        [columns.u64(SEQUENCE)?, columns.u64(CREATED_AT)?, columns.u64(VERSION)?];
    let store = segment.get_store_reader(CACHED_BLOCKS)?;
    let documents = store.iter::<TantivyDocument>(segment.alive_bitset());
    for (doc, document) in segment.doc_ids_alive().zip(documents) {
        let numbers = match (sequences.first(doc), times.first(doc), versions.first(doc)) {
            (Some(sequence), Some(created_at), Some(version)) => Numbers { sequence, created_at, version },
            _ => return Ok(false),
        };
        match fields.message(&document?, numbers) {
            Some(message) => each(&message),
            None => return Ok(false),
        }
    }
    Ok(true)
}
