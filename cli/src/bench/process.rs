//! What this process has used, as the system counts it.

use std::time::Duration;

use anyhow::Context as _;

/// The most memory so far.
pub(super) fn peak_megabytes() -> anyhow::Result<f64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = peak.and_then(|peak| peak.trim().strip_suffix(" kB"));
    let kib: f64 = kib.context("the system does not tell how much memory was used")?.parse()?;
    Ok(kib * 1024.0 / 1e6)
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
        let memory = peak_megabytes().unwrap();
        let held = std::hint::black_box(vec![1u8; 300 << 20]);
        assert!(peak_megabytes().unwrap() > memory.max(300.0), "{} bytes were not seen", held.len());
        drop(held);
        let before = peak_megabytes().unwrap();
        forget_peak().unwrap();
        assert!(peak_megabytes().unwrap() < before - 100.0, "of {before} MB");
    }
}
