//! Waiting for a condition.

use std::time::{Duration, Instant};

/// What may take long on a busy machine still ends well before this.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Between two looks: soon enough to catch a moment, rare enough to leave the cores to what is looked at.
const PAUSE: Duration = Duration::from_millis(5);

/// Looks until there is something to see, and returns it.
///
/// # Panics
/// If it is not there within `limit`.
#[allow(clippy::disallowed_methods, reason = "another process is watched, whose clock cannot be paused")]
pub fn until<T>(what: &str, limit: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(started.elapsed() < limit, "{what}: not within {limit:?}");
        std::thread::sleep(PAUSE);
    }
}

/// Like [`until`] for a look that waits itself.
///
/// # Panics
/// If it is not there within [`LIMIT`].
pub async fn eventually<T, F: Future<Output = Option<T>>>(what: &str, mut look: impl FnMut() -> F) -> T {
    let looking = async {
        loop {
            if let Some(seen) = look().await {
                return seen;
            }
            tokio::time::sleep(PAUSE).await;
        }
    };
    let Ok(seen) = tokio::time::timeout(LIMIT, looking).await else {
        panic!("{what}: not within {LIMIT:?}");
    };
    seen
}
