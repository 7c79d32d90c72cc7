//! Every metric of connections, named in one place.

use metrics::{counter, describe_counter};

pub const CUT: &str = "courant_http_cut_total";
pub const REFUSED: &str = "courant_http_refused_total";

/// Says what each metric means, once a process.
pub(super) fn describe() {
    describe_counter!(
        CUT,
        "connections that were cut while they waited for a request, because others needed room"
    );
    describe_counter!(REFUSED, "connections that were refused because their address has all it may have");
}

pub(super) fn cut() {
    counter!(CUT).increment(1);
}

pub(super) fn refused() {
    counter!(REFUSED).increment(1);
}
