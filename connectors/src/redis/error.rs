//! What an error of Redis means for the caller.

use redis::{ErrorKind, RedisError, ServerErrorKind};

use crate::live::LiveError;

/// Server errors that pass: it is short of something, or another server is about to take over.
const PASSING_CODES: [&str; 5] = ["OOM", "MISCONF", "NOREPLICAS", "UNKILLABLE", "BUSY"];

/// Server errors that end only with the connection: its server has become a replica, or knew no such login when it was
/// connected to.
const STUCK_CODES: [&str; 3] = ["READONLY", "WRONGPASS", "NOAUTH"];

pub(super) fn live_error(server: &str, error: RedisError) -> LiveError {
    let reason = format!("redis at {server}: {error}");
    match error.kind() {
        ErrorKind::Io | ErrorKind::ClusterConnectionNotFound | ErrorKind::Parse => {
            LiveError::Unavailable(reason)
        }
        ErrorKind::InvalidClientConfig => LiveError::Invalid(reason),
        ErrorKind::RESP3NotSupported => {
            LiveError::Refused(format!("redis at {server} is older than version 6; update it"))
        }
        ErrorKind::AuthenticationFailed => LiveError::Refused(format!(
            "{reason}; check 'username' and the password that 'password_env' or 'password_file' names"
        )),
        _ if is_passing(error) => LiveError::Unavailable(reason),
        _ => LiveError::Refused(reason),
    }
}

/// Of a pipeline or a transaction, the first error counts.
fn is_passing(error: RedisError) -> bool {
    let Some(errors) = error.into_server_errors() else { return false };
    let Some((_, first)) = errors.first() else { return false };
    match first.kind() {
        Some(
            ServerErrorKind::BusyLoading
            | ServerErrorKind::Moved
            | ServerErrorKind::Ask
            | ServerErrorKind::TryAgain
            | ServerErrorKind::ClusterDown
            | ServerErrorKind::MasterDown
            | ServerErrorKind::ReadOnly,
        ) => true,
        Some(ServerErrorKind::ResponseError) => {
            first.details().is_some_and(|details| details.contains("max number of clients"))
        }
        _ => PASSING_CODES.contains(&first.code()),
    }
}

/// Whether a new connection may do better, and the client will not make one: it does after an I/O error only.
pub(super) fn is_stuck(error: &RedisError) -> bool {
    match error.clone().into_server_errors() {
        Some(errors) => errors.iter().any(|(_, error)| STUCK_CODES.contains(&error.code())),
        // In the client's own words, and no answer to a command: something was wrong while it connected.
        None => !error.is_io_error(),
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;
    use crate::store::Remedy;

    fn error_of(reply: &str) -> RedisError {
        redis::parse_redis_value(reply.as_bytes()).unwrap().extract_error().unwrap_err()
    }

    fn remedy_of(reply: &str) -> Remedy {
        live_error("server", error_of(reply)).remedy()
    }

    #[test]
    fn what_passes_is_tried_again_and_what_does_not_stops() {
        for reply in [
            "-LOADING loading\r\n",
            "-READONLY a replica\r\n",
            "-CLUSTERDOWN down\r\n",
            "-OOM used too much\r\n",
            "-ERR max number of clients reached\r\n",
        ] {
            assert_eq!(remedy_of(reply), Remedy::Retry, "{reply}");
        }
        for reply in ["-NOAUTH log in\r\n", "-NOPERM no\r\n", "-WRONGTYPE a list\r\n", "-ERR what\r\n"] {
            assert_eq!(remedy_of(reply), Remedy::Stop, "{reply}");
        }
        let reset = RedisError::from(io::Error::from(io::ErrorKind::ConnectionReset));
        assert_eq!(live_error("server", reset).remedy(), Remedy::Retry);
    }

    #[test]
    fn a_new_connection_is_for_what_the_old_one_would_repeat() {
        for reply in ["-READONLY a replica\r\n", "-WRONGPASS no such user\r\n", "-NOAUTH log in\r\n"] {
            assert!(is_stuck(&error_of(reply)), "{reply}");
        }
        let no_database =
            (ErrorKind::Server(ServerErrorKind::ResponseError), "Redis server refused to switch database");
        assert!(is_stuck(&RedisError::from(no_database)));
        for reply in ["-LOADING loading\r\n", "-NOPERM no\r\n", "-ERR what\r\n", "-OOM used too much\r\n"] {
            assert!(!is_stuck(&error_of(reply)), "{reply}");
        }
        let reset = RedisError::from(io::Error::from(io::ErrorKind::ConnectionReset));
        assert!(!is_stuck(&reset), "the client sees to it");
    }
}
