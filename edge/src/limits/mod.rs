//! How often somebody may do something.
//!
//! Counts hold across processes: they are kept in live state. Asking it for every message would cost a round trip each, so
//! a process leases a portion of what is left and hands it out by itself; what it does not use until the window ends is lost to
//! that user, a tenth of the limit per process at most. Attempts to sign in are few and counted one by one. While live
//! state is down every process counts for itself: a limit is then as many times larger as there are processes, and nobody
//! is locked out.

mod config;
mod lease;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex as StdMutex, PoisonError};
use std::time::Duration;

use courant_connectors::live::{Count, Counters};
use courant_connectors::model::commands::{Code, Refusal};
use metrics::counter;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

pub use config::{LimitsConfig, Rate};
use lease::{Lease, Window};

/// What is limited; each has a rate of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Limit {
    /// Messages sent, by user.
    Messages,
    /// Attempts to sign in, by address.
    Logins,
    /// Everything else a signed-in user asks for, by user.
    Requests,
    /// Everything asked for without a token, and new sockets, by address.
    Anonymous,
}

impl Limit {
    const ALL: [Self; 4] = [Self::Messages, Self::Logins, Self::Requests, Self::Anonymous];

    const fn name(self) -> &'static str {
        match self {
            Self::Messages => "messages",
            Self::Logins => "logins",
            Self::Requests => "requests",
            Self::Anonymous => "anonymous",
        }
    }

    /// How much is leased at a time.
    fn portion(self, rate: Rate) -> u32 {
        match self {
            Self::Logins => 1,
            _ => (rate.count.get() / 10).max(1),
        }
    }
}

/// What was too many, by limit: a metric.
pub const REFUSED: &str = "courant_limits_refused_total";
/// Leases that are remembered of each limit. Beyond it those that have ended are forgotten, and then all: the counts
/// themselves are not in them.
const MOST_LEASES: usize = 100_000;
/// Live state that takes longer counts as down: whoever is counted waits for it.
const PATIENCE: Duration = Duration::from_millis(250);
/// How long live state is left alone after it failed.
const PAUSE: Duration = Duration::from_secs(5);

/// Counts what is done. Clones share the counts; the default limits nothing.
#[derive(Clone, Default)]
pub struct Limits(Option<Arc<Counts>>);

/// By whom. SipHash and not a faster one: who they are is chosen by strangers.
type Leases = HashMap<Box<str>, Arc<Mutex<Lease>>>;

struct Counts {
    rates: LimitsConfig,
    live: Arc<dyn Counters>,
    /// By [`Limit`].
    leases: [StdMutex<Leases>; 4],
    /// Live state is not asked before.
    ask_again: StdMutex<Option<Instant>>,
}

impl Limits {
    pub fn new(config: &LimitsConfig, live: Arc<dyn Counters>) -> Self {
        metrics::describe_counter!(REFUSED, "what was refused because it was too much, by limit");
        Self(config.enabled.then(|| {
            Arc::new(Counts {
                rates: config.clone(),
                live,
                leases: Limit::ALL.map(|_| StdMutex::default()),
                ask_again: StdMutex::default(),
            })
        }))
    }

    /// Whether anybody is limited at all.
    pub fn are_on(&self) -> bool {
        self.0.is_some()
    }

    /// Counts one more; refuses with `RATE_LIMITED` and when to come back if that is too many.
    pub async fn take(&self, limit: Limit, who: &str) -> Result<(), Refusal> {
        let Some(counts) = &self.0 else { return Ok(()) };
        let rate = counts.rates.of(limit);
        let lease = counts.lease(limit, who);
        // Held while live state is asked, so that many at the same moment share one portion.
        let mut lease = lease.lock().await;
        let taken = if let Some(taken) = lease.take(Instant::now()) {
            taken
        } else {
            let portion = limit.portion(rate);
            let count = counts.count(limit, who, portion, rate.per, &mut lease.alone).await;
            lease.grant(portion, rate.count.get(), count, Instant::now())
        };
        taken.map_err(|wait| {
            counter!(REFUSED, "limit" => limit.name()).increment(1);
            let message = format!("too many {}: {rate} are allowed; wait and try again", limit.name());
            Refusal::new(Code::RateLimited, message).retry_after(wait)
        })
    }
}

impl Counts {
    fn lease(&self, limit: Limit, who: &str) -> Arc<Mutex<Lease>> {
        let mut leases = lock(&self.leases[limit as usize]);
        if let Some(lease) = leases.get(who) {
            return Arc::clone(lease);
        }
        if leases.len() >= MOST_LEASES {
            forget(&mut leases, Instant::now());
        }
        Arc::clone(leases.entry(who.into()).or_default())
    }

    async fn count(&self, limit: Limit, who: &str, by: u32, per: Duration, alone: &mut Window) -> Count {
        if self.may_ask() {
            let counter = format!("{}:{who}", limit.name());
            let error = match timeout(PATIENCE, self.live.count(&counter, by, per)).await {
                Ok(Ok(count)) => return count,
                Ok(Err(error)) => error.to_string(),
                Err(late) => late.to_string(),
            };
            tracing::warn!(%error, "limits are counted by this process alone for a while");
            *lock(&self.ask_again) = Some(Instant::now() + PAUSE);
        }
        alone.count(by, per, Instant::now())
    }

    fn may_ask(&self) -> bool {
        lock(&self.ask_again).is_none_or(|again| again <= Instant::now())
    }
}

/// Makes room for half as many again, so that this is not done for every newcomer.
fn forget(leases: &mut Leases, now: Instant) {
    // One that is locked is in use.
    leases.retain(|_, lease| lease.try_lock().map_or(true, |lease| !lease.has_ended(now)));
    if leases.len() > MOST_LEASES / 2 {
        leases.clear();
    }
}

/// No lock is held over anything that panics, and counts are never half changed.
fn lock<T>(mutex: &StdMutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whom an address stands for. Somebody with one IPv6 address has 2⁶⁴ of them.
pub fn by_address(address: IpAddr) -> String {
    match address.to_canonical() {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            format!("{a:x}:{b:x}:{c:x}:{d:x}::/64")
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

    use async_trait::async_trait;
    use courant_connectors::embedded::MemoryLive;
    use courant_connectors::live::LiveError;

    use super::*;

    /// Counts how often it is asked, and can be down.
    #[derive(Default)]
    struct Watched {
        live: Option<MemoryLive>,
        asked: AtomicU32,
        down: AtomicBool,
    }

    #[async_trait]
    impl Counters for Watched {
        async fn count(
            &self,
            counter: &str,
            by: u32,
            window: Duration,
        ) -> courant_connectors::live::Result<Count> {
            self.asked.fetch_add(1, Ordering::Relaxed);
            if self.down.load(Ordering::Relaxed) {
                return Err(LiveError::Unavailable("gone".to_owned()));
            }
            self.live.as_ref().unwrap().count(counter, by, window).await
        }
    }

    fn watched() -> Arc<Watched> {
        Arc::new(Watched { live: Some(MemoryLive::new()), ..Watched::default() })
    }

    fn limits(live: &Arc<Watched>) -> Limits {
        let config = LimitsConfig {
            messages: "60/min".parse().unwrap(),
            logins: "5/15min".parse().unwrap(),
            ..LimitsConfig::default()
        };
        Limits::new(&config, Arc::clone(live) as _)
    }

    async fn taken(limits: &Limits, limit: Limit, who: &str, tries: u32) -> u32 {
        let mut taken = 0;
        for _ in 0..tries {
            taken += u32::from(limits.take(limit, who).await.is_ok());
        }
        taken
    }

    #[tokio::test(start_paused = true)]
    async fn as_many_as_allowed_for_a_tenth_of_the_calls() {
        let live = watched();
        let limits = limits(&live);
        assert_eq!(taken(&limits, Limit::Messages, "user_1", 200).await, 60);
        assert_eq!(live.asked.load(Ordering::Relaxed), 11, "ten portions and one that was too many");
        assert_eq!(taken(&limits, Limit::Messages, "user_2", 60).await, 60, "each has their own");
        let refused = limits.take(Limit::Messages, "user_1").await.unwrap_err();
        assert_eq!((refused.code, refused.retry_after_ms), (Code::RateLimited, Some(60_000)));
        assert!(refused.message.contains("60/1m"), "{}", refused.message);
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(taken(&limits, Limit::Messages, "user_1", 61).await, 60, "a new window");
    }

    #[tokio::test(start_paused = true)]
    async fn the_limit_holds_across_processes() {
        let live = watched();
        let (one, other) = (limits(&live), limits(&live));
        let mut all = 0;
        for _ in 0..100 {
            all += taken(&one, Limit::Messages, "user_1", 1).await;
            all += taken(&other, Limit::Messages, "user_1", 1).await;
        }
        assert_eq!(all, 60);
        assert_eq!(taken(&one, Limit::Logins, "1.2.3.4", 3).await, 3);
        assert_eq!(taken(&other, Limit::Logins, "1.2.3.4", 9).await, 2, "one by one, none is lost");
    }

    #[tokio::test(start_paused = true)]
    async fn many_at_the_same_moment_share_portions() {
        let live = watched();
        let limits = limits(&live);
        let all = futures::future::join_all((0..60).map(|_| limits.take(Limit::Messages, "user_1"))).await;
        assert!(all.iter().all(Result::is_ok));
        assert_eq!(live.asked.load(Ordering::Relaxed), 10);
    }

    #[tokio::test(start_paused = true)]
    async fn without_live_state_each_counts_alone() {
        let live = watched();
        live.down.store(true, Ordering::Relaxed);
        let limits = limits(&live);
        assert_eq!(taken(&limits, Limit::Messages, "user_1", 100).await, 60);
        assert_eq!(live.asked.load(Ordering::Relaxed), 1, "it is left alone for a while");
        assert!(limits.take(Limit::Messages, "user_1").await.is_err());
        live.down.store(false, Ordering::Relaxed);
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(taken(&limits, Limit::Messages, "user_1", 100).await, 60);
        assert!(live.asked.load(Ordering::Relaxed) > 1);
    }

    #[tokio::test(start_paused = true)]
    async fn memory_is_bounded() {
        let limits = limits(&watched());
        let counts = limits.0.as_ref().unwrap();
        for who in 0..MOST_LEASES + 10 {
            drop(counts.lease(Limit::Anonymous, &who.to_string()));
        }
        assert!(lock(&counts.leases[Limit::Anonymous as usize]).len() <= MOST_LEASES);
    }

    #[tokio::test]
    async fn switched_off_nothing_is_limited() {
        assert_eq!(taken(&Limits::default(), Limit::Logins, "1.2.3.4", 1000).await, 1000);
        let config = LimitsConfig { enabled: false, ..LimitsConfig::default() };
        assert!(Limits::new(&config, watched()).0.is_none());
    }

    #[test]
    fn an_address_stands_for_its_network() {
        let who = |text: &str| by_address(text.parse().unwrap());
        assert_eq!(who("192.0.2.7"), "192.0.2.7");
        assert_eq!(who("::ffff:192.0.2.7"), "192.0.2.7");
        assert_eq!(who("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::/64");
    }
}
