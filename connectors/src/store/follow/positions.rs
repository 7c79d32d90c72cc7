//! How far a follower came, as plain data.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::store::{SequenceNumber, ShardId};

/// By shard, how much of it is done. A shard that is not named has not begun.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FollowPositions(pub BTreeMap<ShardId, ShardPosition>);

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ShardPosition {
    /// Nothing of it yet, and it is to be read from its oldest change.
    Oldest,
    /// Nothing of it yet, and only what happens from now on counts. What happens between a stop and a new start is not
    /// seen while this is all that is known.
    Latest,
    After(SequenceNumber),
    /// All of it. Kept as long as the store knows the shard.
    Ended,
}
