//! How records end, and how many of them.

/// How a record ended. Ordered by weight: a record whose parts ended differently ends as the heaviest.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    serde::Serialize,
    serde::Deserialize,
    schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum Disposition {
    /// Left out on purpose, with a reason.
    Dropped = 1,
    /// Reached the end of its branch.
    Delivered = 2,
    /// Kept aside, durably, with the error.
    DeadLettered = 4,
    /// Not dealt with: its source will offer it again, or has told the client so.
    Failed = 8,
}

impl Disposition {
    pub const ALL: [Self; 4] = [Self::Delivered, Self::Dropped, Self::DeadLettered, Self::Failed];

    /// The label value in metrics and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Delivered => "delivered",
            Self::Dropped => "dropped",
            Self::DeadLettered => "dead-lettered",
            Self::Failed => "failed",
        }
    }

    /// The heaviest of the dispositions in a slot's bits.
    pub(super) fn heaviest(bits: u8) -> Self {
        match bits {
            8.. => Self::Failed,
            4..8 => Self::DeadLettered,
            2..4 => Self::Delivered,
            _ => Self::Dropped,
        }
    }
}

/// Records by disposition.
#[derive(
    Debug, Default, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema,
)]
pub struct Tally {
    pub delivered: u64,
    pub dropped: u64,
    pub dead_lettered: u64,
    pub failed: u64,
}

impl Tally {
    pub fn add(&mut self, disposition: Disposition, count: u64) {
        match disposition {
            Disposition::Delivered => self.delivered += count,
            Disposition::Dropped => self.dropped += count,
            Disposition::DeadLettered => self.dead_lettered += count,
            Disposition::Failed => self.failed += count,
        }
    }

    pub fn of(&self, disposition: Disposition) -> u64 {
        match disposition {
            Disposition::Delivered => self.delivered,
            Disposition::Dropped => self.dropped,
            Disposition::DeadLettered => self.dead_lettered,
            Disposition::Failed => self.failed,
        }
    }

    pub fn sum(&self) -> u64 {
        self.delivered + self.dropped + self.dead_lettered + self.failed
    }
}
