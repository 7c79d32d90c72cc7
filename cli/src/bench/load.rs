//! Keeping a number of calls in flight and timing them.

use std::time::Duration;

use tokio::time::Instant;

use super::process::cpu_time;

/// What a load came to.
pub(super) struct Measured {
    /// Records per second.
    pub(super) rate: f64,
    pub(super) p50: Duration,
    pub(super) p99: Duration,
    /// What a record took of the processors, of callers and called in this process together.
    pub(super) cpu_micros: f64,
}

/// Latencies kept per caller, so that memory does not grow with the speed of what is measured.
const KEPT: usize = 4096;

/// Runs `callers` tasks, each with one call after another in flight, for a while. A call handles `records`.
pub(super) async fn closed_loop<Call, Calling, E>(
    callers: usize,
    records: usize,
    lasting: Duration,
    call: impl Fn(usize) -> Call,
) -> anyhow::Result<Measured>
where
    Call: FnMut(u64) -> Calling + Send + 'static,
    Calling: Future<Output = Result<(), E>> + Send + 'static,
    E: std::error::Error + Send + Sync + 'static,
{
    let (started, cpu_before) = (Instant::now(), cpu_time()?);
    let end = started + lasting;
    let tasks: Vec<_> = (0..callers).map(|caller| tokio::spawn(one_caller(call(caller), end))).collect();
    let (mut calls, mut latencies) = (0, Vec::new());
    for task in tasks {
        let (done, taken) = task.await.expect("a caller does not panic")?;
        calls += done;
        latencies.extend(taken);
    }
    let rate = (calls * records as u64) as f64 / started.elapsed().as_secs_f64();
    latencies.sort_unstable();
    let at = |share: usize| latencies.get(latencies.len() * share / 100).copied().unwrap_or_default();
    let cpu = cpu_time()?.saturating_sub(cpu_before);
    let cpu_micros = cpu.as_secs_f64() * 1e6 / (calls * records as u64).max(1) as f64;
    Ok(Measured { rate, p50: at(50), p99: at(99), cpu_micros })
}

async fn one_caller<Call, Calling, E>(mut call: Call, end: Instant) -> Result<(u64, Vec<Duration>), E>
where
    Call: FnMut(u64) -> Calling,
    Calling: Future<Output = Result<(), E>>,
{
    let (mut calls, mut latencies, mut oldest) = (0u64, Vec::new(), 0);
    let mut now = Instant::now();
    while now < end {
        call(calls).await?;
        let after = Instant::now();
        if latencies.len() < KEPT {
            latencies.push(after - now);
        } else {
            latencies[oldest] = after - now;
            oldest = (oldest + 1) % KEPT;
        }
        calls += 1;
        now = after;
    }
    Ok((calls, latencies))
}
