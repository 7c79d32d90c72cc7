//! What this process has used, as the system counts it.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context as _;

/// The most memory so far, with files that are mapped.
pub(super) fn peak_megabytes() -> anyhow::Result<f64> {
    megabytes("VmHWM:")
}

/// A line of what the system tells about this process.
fn megabytes(line: &str) -> anyhow::Result<f64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let told = status.lines().find_map(|told| told.strip_prefix(line));
    let kib = told.and_then(|told| told.trim().strip_suffix(" kB"));
    let kib: f64 = kib.context("the system does not tell how much memory is used")?.parse()?;
    Ok(kib * 1024.0 / 1e6)
}

/// Watches how much memory is the process's own. Mapped files are not: the system takes their memory back whenever it
/// is short of it. It keeps no peak of the rest, so somebody has to look again and again.
pub(super) struct OwnMemory {
    ended: mpsc::SyncSender<()>,
    watching: JoinHandle<anyhow::Result<f64>>,
}

impl OwnMemory {
    const LOOK_EVERY: Duration = Duration::from_millis(10);

    pub(super) fn watch() -> Self {
        // Nothing is ever sent: the end of the channel is the sign.
        let (ended, until) = mpsc::sync_channel(0);
        let watching = std::thread::spawn(move || {
            let mut peak = own_megabytes()?;
            while until.recv_timeout(Self::LOOK_EVERY) == Err(RecvTimeoutError::Timeout) {
                peak = peak.max(own_megabytes()?);
            }
            Ok(peak.max(own_megabytes()?))
        });
        Self { ended, watching }
    }

    /// The most that was seen.
    pub(super) fn peak(self) -> anyhow::Result<f64> {
        drop(self.ended);
        self.watching.join().map_err(|_| anyhow::anyhow!("nobody looked at the memory"))?
    }
}

fn own_megabytes() -> anyhow::Result<f64> {
    megabytes("RssAnon:")
}

/// Forgets the most memory so far: what [`peak_megabytes`] tells begins with what is used now.
pub(super) fn forget_peak() -> anyhow::Result<()> {
    std::fs::write("/proc/self/clear_refs", "5").context("the system does not let the peak be measured anew")
}

/// Time on processors so far, of all threads and for their calls of the system. In steps of ten milliseconds.
pub(super) fn cpu_time() -> anyhow::Result<Duration> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    // the second field is a name in brackets that may have spaces; user and system time are the 14th and 15th
    let behind_name = stat.rsplit(')').next().unwrap_or_default();
    let mut fields = behind_name.split_whitespace().skip(11);
    let mut next = || fields.next().and_then(|ticks| ticks.parse::<u64>().ok());
    let ticks = next().zip(next()).map(|(user, system)| user + system);
    // a tick is a hundredth of a second wherever programs can see it
    Ok(Duration::from_millis(10 * ticks.context("the system does not tell how long was computed")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One test for all of it: there is one peak for the whole process.
    #[test]
    fn what_is_used_is_counted() {
        let before = cpu_time().unwrap();
        let mut sum = 0u64;
        while cpu_time().unwrap() < before + Duration::from_millis(30) {
            sum = std::hint::black_box(sum + 1);
        }
        let (memory, own) = (peak_megabytes().unwrap(), OwnMemory::watch());
        let held = std::hint::black_box(vec![1u8; 300 << 20]);
        assert!(peak_megabytes().unwrap() > memory.max(300.0), "{} bytes were not seen", held.len());
        drop(held);
        let seen = own.peak().unwrap();
        assert!(seen > 300.0, "only {seen} MB were seen");
        let before = peak_megabytes().unwrap();
        forget_peak().unwrap();
        assert!(peak_megabytes().unwrap() < before - 100.0, "of {before} MB");
    }
}
