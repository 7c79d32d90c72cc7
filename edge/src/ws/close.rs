//! Why a socket is closed, in the protocol's codes. Below 4500 something is up to the client, above it reconnecting is
//! all there is to do.

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Close {
    BadFrame,
    Unauthenticated,
    Silent,
    Replaced,
    TooLarge,
    RateLimited,
    Draining,
    SlowConsumer,
}

impl Close {
    pub(super) const ALL: [Self; 8] = [
        Self::BadFrame,
        Self::Unauthenticated,
        Self::Silent,
        Self::Replaced,
        Self::TooLarge,
        Self::RateLimited,
        Self::Draining,
        Self::SlowConsumer,
    ];

    pub(super) const fn code(self) -> u16 {
        match self {
            Self::BadFrame => 4400,
            Self::Unauthenticated => 4401,
            Self::Silent => 4408,
            Self::Replaced => 4409,
            Self::TooLarge => 4413,
            Self::RateLimited => 4429,
            Self::Draining => 4503,
            Self::SlowConsumer => 4504,
        }
    }

    /// Goes with the code, and into the published protocol.
    pub(super) const fn reason(self) -> &'static str {
        match self {
            Self::BadFrame => "bad frame or protocol",
            Self::Unauthenticated => "the session has ended; sign in again",
            Self::Silent => "heartbeats were missed; reconnect",
            Self::Replaced => "replaced by a newer socket",
            Self::TooLarge => "the frame is too large",
            Self::RateLimited => "too many messages; slow down",
            Self::Draining => "the server is stopping; reconnect after the delay",
            Self::SlowConsumer => "too much waits for this client; reconnect and sync",
        }
    }

    /// The label under which it is counted.
    pub(super) const fn label(self) -> &'static str {
        match self {
            Self::BadFrame => "4400",
            Self::Unauthenticated => "4401",
            Self::Silent => "4408",
            Self::Replaced => "4409",
            Self::TooLarge => "4413",
            Self::RateLimited => "4429",
            Self::Draining => "4503",
            Self::SlowConsumer => "4504",
        }
    }
}
