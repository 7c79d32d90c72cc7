//! Every metric of sockets, named in one place.

use metrics::{Counter, Gauge, counter, gauge};

use super::close::Close;

pub const CONNECTIONS: &str = "courant_ws_connections";
pub const OPENED: &str = "courant_ws_opened_total";
pub const REFUSED: &str = "courant_ws_refused_total";
pub const FRAMES_IN: &str = "courant_ws_frames_in_total";
pub const FRAMES_OUT: &str = "courant_ws_frames_out_total";
pub const WRITES: &str = "courant_ws_writes_total";
pub const CLOSES: &str = "courant_ws_closes_total";
pub const DELIVERIES: &str = "courant_ws_deliveries_total";
pub const RENEWED: &str = "courant_ws_renewed_total";

/// Says what each metric means, once a process.
pub fn describe() {
    use metrics::{describe_counter, describe_gauge};
    describe_gauge!(CONNECTIONS, "sockets that are open");
    describe_counter!(OPENED, "sockets that were opened");
    describe_counter!(REFUSED, "upgrades that were refused, by code");
    describe_counter!(FRAMES_IN, "frames from clients");
    describe_counter!(FRAMES_OUT, "frames written to clients");
    describe_counter!(
        WRITES,
        "system calls that wrote to clients; frames out divided by it is what is saved"
    );
    describe_counter!(CLOSES, "sockets that ended, by close code; 'client' and 'lost' if not by the server");
    describe_counter!(DELIVERIES, "frames fanned out to sockets, by what became of them");
    describe_counter!(RENEWED, "connections that live state had forgotten and was told again");
}

/// Handles are looked up once; a frame costs no look-up.
pub(super) struct Metrics {
    pub(super) connections: Gauge,
    pub(super) opened: Counter,
    pub(super) frames_in: Counter,
    pub(super) frames_out: Counter,
    pub(super) writes: Counter,
    pub(super) delivered: Counter,
    pub(super) late: Counter,
    pub(super) overflowed: Counter,
    pub(super) unknown: Counter,
    pub(super) renewed: Counter,
    closes: [Counter; Close::ALL.len()],
    closed_by_client: Counter,
    lost: Counter,
}

impl Metrics {
    pub(super) fn new() -> Self {
        let outcome = |outcome: &'static str| counter!(DELIVERIES, "outcome" => outcome);
        let close = |code: &'static str| counter!(CLOSES, "code" => code);
        Self {
            connections: gauge!(CONNECTIONS),
            opened: counter!(OPENED),
            frames_in: counter!(FRAMES_IN),
            frames_out: counter!(FRAMES_OUT),
            writes: counter!(WRITES),
            delivered: outcome("delivered"),
            late: outcome("late"),
            overflowed: outcome("overflowed"),
            unknown: outcome("unknown-connection"),
            renewed: counter!(RENEWED),
            closes: Close::ALL.map(|reason| close(reason.label())),
            closed_by_client: close("client"),
            lost: close("lost"),
        }
    }

    pub(super) fn closed(&self, reason: Option<Close>) {
        match Close::ALL.iter().position(|known| Some(*known) == reason) {
            Some(at) => self.closes[at].increment(1),
            None => self.closed_by_client.increment(1),
        }
    }

    pub(super) fn lost(&self) {
        self.lost.increment(1);
    }

    pub(super) fn refused(code: &'static str) {
        counter!(REFUSED, "code" => code).increment(1);
    }
}
