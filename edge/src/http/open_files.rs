//! How many connections there can be at all: each is an open file, and a process may open so many.
//!
//! Store and log open files too. A process that spends its last one on a stranger's connection cannot write any more, so
//! some are kept back.

use rustix::process::{Resource, getrlimit, setrlimit};

/// Kept back at the most; a quarter where there are few.
const KEPT_BACK: u64 = 1024;

/// As many of the wanted connections as there can be. Raises the process's limit as far as it may be raised.
pub(super) fn connections_within(wanted: u32) -> u32 {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        limit.current = limit.maximum;
        if setrlimit(Resource::Nofile, limit).is_err() {
            limit = getrlimit(Resource::Nofile);
        }
    }
    let Some(files) = limit.current else { return wanted };
    let connections = room_in(files).min(wanted);
    if connections < wanted {
        tracing::warn!(
            files,
            connections,
            "edge.max_connections is {wanted}, which is more than this process may open files; \
             raise its limit (`ulimit -n`, or `LimitNOFILE` of its service)"
        );
    }
    connections
}

fn room_in(files: u64) -> u32 {
    let room = files - (files / 4).min(KEPT_BACK);
    u32::try_from(room).unwrap_or(u32::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_files_are_kept_back() {
        assert_eq!([room_in(0), room_in(1024), room_in(20_000)], [1, 768, 18_976]);
        assert_eq!(room_in(u64::MAX), u32::MAX);
        assert_eq!(connections_within(10), 10);
    }
}
