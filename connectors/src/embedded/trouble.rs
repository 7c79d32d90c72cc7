//! Which errors of the engine below may pass, and which are of what a file holds.

use std::io;

use fjall::LsmError;

/// What the system says of a wrong name or place that a file gave.
const OF_CONTENT: [io::ErrorKind; 4] = [
    io::ErrorKind::InvalidData,
    io::ErrorKind::InvalidInput,
    io::ErrorKind::NotFound,
    io::ErrorKind::UnexpectedEof,
];

/// The operating system's error, as it is when there are too many open files or a disk is gone: it may be well again
/// later. Everything else is damage, as is a file that is missing, ends too early or names a place that cannot be.
pub(super) fn passing(error: fjall::Error) -> Result<io::Error, fjall::Error> {
    let may_pass = |source: &io::Error| !OF_CONTENT.contains(&source.kind());
    match error {
        fjall::Error::Io(source) | fjall::Error::Storage(LsmError::Io(source)) if may_pass(&source) => {
            Ok(source)
        }
        other => Err(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_refuses_may_pass_and_what_a_file_says_is_damage() {
        let too_many_files = || io::Error::from_raw_os_error(24);
        let below = |error| fjall::Error::Storage(LsmError::Io(error));
        for error in [fjall::Error::Io(too_many_files()), below(too_many_files())] {
            assert_eq!(passing(error).unwrap().raw_os_error(), Some(24));
        }
        for kind in OF_CONTENT {
            assert!(passing(fjall::Error::Io(kind.into())).is_err());
            assert!(passing(below(kind.into())).is_err());
        }
        assert!(passing(fjall::Error::Storage(LsmError::Unrecoverable)).is_err());
    }
}
