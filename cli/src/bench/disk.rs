//! What the disk can do: the limit that durable writes are measured against.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::time::Duration;

use tokio::time::Instant;

/// Appends `group` records at a time to a file and syncs after each append; records per second.
pub(super) fn append_and_sync(
    folder: &Path,
    record_bytes: usize,
    group: usize,
    lasting: Duration,
) -> io::Result<f64> {
    let mut file = tempfile::tempfile_in(folder)?;
    let appended = incompressible(record_bytes * group);
    let started = Instant::now();
    let mut records = 0u64;
    while started.elapsed() < lasting {
        file.write_all(&appended)?;
        file.sync_data()?;
        records += group as u64;
    }
    Ok(records as f64 / started.elapsed().as_secs_f64())
}

/// Reads a file of this size from front to back, as the page cache has it; bytes per second.
pub(super) fn read_sequentially(folder: &Path, file_bytes: usize, lasting: Duration) -> io::Result<f64> {
    let mut file = tempfile::tempfile_in(folder)?;
    file.write_all(&incompressible(file_bytes))?;
    let mut block = vec![0; 256 * 1024];
    let started = Instant::now();
    let mut bytes = 0u64;
    while started.elapsed() < lasting {
        bytes += read_once(&mut file, &mut block)?;
    }
    Ok(bytes as f64 / started.elapsed().as_secs_f64())
}

fn read_once(file: &mut File, block: &mut [u8]) -> io::Result<u64> {
    file.seek(SeekFrom::Start(0))?;
    let mut bytes = 0;
    loop {
        match file.read(block)? {
            0 => return Ok(bytes),
            read => bytes += read as u64,
        }
    }
}

/// Bytes that no file system or engine makes smaller.
pub(super) fn incompressible(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}
