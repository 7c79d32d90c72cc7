//! What the disk can do: the limit that durable writes are measured against.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::load::closed_loop;

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

/// The same loop for writers of whom each waits for its record: what a store could reach that did nothing else. Records
/// per second.
pub(super) async fn append_for_writers(
    folder: &Path,
    record_bytes: usize,
    writers: usize,
    lasting: Duration,
) -> anyhow::Result<f64> {
    let mut file = tempfile::tempfile_in(folder)?;
    // Every writer has one record under way at the most, so there is always room.
    let (queue, mut waiting) = mpsc::channel::<Waiting>(writers);
    let appending = tokio::task::spawn_blocking(move || {
        let (mut group, mut appended) = (Vec::new(), Vec::new());
        while waiting.blocking_recv_many(&mut group, writers) > 0 {
            appended.clear();
            for (record, _) in &group {
                appended.extend_from_slice(record);
            }
            file.write_all(&appended)?;
            file.sync_data()?;
            for (_, written) in group.drain(..) {
                // one that has stopped waiting needs no answer
                let _ = written.send(());
            }
        }
        Ok::<_, io::Error>(())
    });
    let record = Bytes::from(incompressible(record_bytes));
    let measured = closed_loop(writers, 1, lasting, |_| {
        let (queue, record) = (queue.clone(), record.clone());
        move |_| {
            let (queue, record) = (queue.clone(), record.clone());
            async move {
                let (written, answer) = oneshot::channel();
                let _ = queue.send((record, written)).await;
                answer.await
            }
        }
    })
    .await;
    drop(queue);
    appending.await??;
    Ok(measured?.rate)
}

/// A record, and who waits for it.
type Waiting = (Bytes, oneshot::Sender<()>);

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
