//! `rate:…`: counting in windows of time.

use std::time::Duration;

use async_trait::async_trait;
use redis::cmd;

use super::{Redis, keys};
use crate::live::{Count, Counters, Result, check_window};

/// The first count begins the window, and so does one that finds a counter without an end.
const COUNT: &str = "
local value = redis.call('INCRBY', KEYS[1], ARGV[1])
local left = redis.call('PTTL', KEYS[1])
if left < 0 then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  left = tonumber(ARGV[2])
end
return {value, left}";

#[async_trait]
impl Counters for Redis {
    async fn count(&self, counter: &str, by: u32, window: Duration) -> Result<Count> {
        check_window(counter, window)?;
        let mut count = cmd("EVAL");
        count.arg(COUNT).arg(1).arg(keys::rate(counter)).arg(by).arg(super::millis(window));
        let (value, left): (u64, u64) = self.0.link.one(&count).await?;
        Ok(Count { value, resets_in: Duration::from_millis(left) })
    }
}
