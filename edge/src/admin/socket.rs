//! The socket's file: made for one user, owned by one process.
//!
//! A lock file beside the socket says whether its process lives; the system releases it however the process
//! ends. Only asking the socket was rejected: two processes that start together would both find it dead, and
//! the second would take the first one's away.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixStream as BlockingStream;
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use tokio::net::UnixListener;

/// `sun_path` holds 108 bytes, the last of them a zero.
pub(super) const MAX_PATH_BYTES: usize = 107;

/// Why the admin socket could not be made.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    #[error(
        "the admin socket's path is {length} bytes long and the system allows {MAX_PATH_BYTES}: `{}`; \
         choose a shorter folder, or a relative one",
        path.display()
    )]
    TooLong { path: PathBuf, length: usize },
    #[error(
        "another courant is running with the admin socket `{}`; stop it with `courant stop`, \
         or give this one its own folder",
        path.display()
    )]
    Live { path: PathBuf },
    #[error("`{}` is in the way of the admin socket and is no socket; move it away", path.display())]
    InTheWay { path: PathBuf },
    #[error("cannot {doing} `{}`", path.display())]
    Io { doing: &'static str, path: PathBuf, source: io::Error },
}

/// Refuses what the system would refuse with a message nobody understands.
pub(super) fn check_length(path: &Path) -> Result<(), SocketError> {
    let length = path.as_os_str().len();
    if length > MAX_PATH_BYTES { Err(SocketError::TooLong { path: path.to_owned(), length }) } else { Ok(()) }
}

/// A listening socket whose file goes when it does.
pub(super) struct OwnedSocket {
    pub(super) listener: UnixListener,
    path: PathBuf,
    /// Held until the process ends.
    _lock: File,
}

impl OwnedSocket {
    pub(super) fn bind(path: &Path) -> Result<Self, SocketError> {
        check_length(path)?;
        let failed = |doing| move |source| SocketError::Io { doing, path: path.to_owned(), source };
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(folder)
                .map_err(failed("make the folder of the admin socket"))?;
        }
        let lock = lock(path)?;
        remove_dead(path)?;
        let listener = UnixListener::bind(path).map_err(failed("make the admin socket"))?;
        // Until here the umask decided who may connect; whoever did is refused by the credentials check.
        fs::set_permissions(path, Permissions::from_mode(0o600))
            .map_err(failed("protect the admin socket"))?;
        Ok(Self { listener, path: path.to_owned(), _lock: lock })
    }
}

impl Drop for OwnedSocket {
    fn drop(&mut self) {
        // Before the lock is released, so that it cannot be a successor's socket that is removed.
        if let Err(error) = fs::remove_file(&self.path) {
            tracing::debug!(%error, path = %self.path.display(), "the admin socket was already gone");
        }
    }
}

fn lock(socket: &Path) -> Result<File, SocketError> {
    let mut name = socket.as_os_str().to_owned();
    name.push(".lock");
    let path = PathBuf::from(name);
    let file = OpenOptions::new().create(true).append(true).mode(0o600).open(&path).map_err(|source| {
        SocketError::Io { doing: "open the lock of the admin socket", path: path.clone(), source }
    })?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(SocketError::Live { path: socket.to_owned() }),
        Err(error) => {
            Err(SocketError::Io { doing: "lock the admin socket with", path, source: error.into() })
        }
    }
}

/// Removes what a dead process left; we hold the lock, so no courant is behind it.
fn remove_dead(path: &Path) -> Result<(), SocketError> {
    let failed = |doing| move |source| SocketError::Io { doing, path: path.to_owned(), source };
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(failed("look at the admin socket")(error)),
        Ok(found) if !found.file_type().is_socket() => Err(SocketError::InTheWay { path: path.to_owned() }),
        // Something else, or a courant whose lock file was deleted, still answers.
        Ok(_) if BlockingStream::connect(path).is_ok() => Err(SocketError::Live { path: path.to_owned() }),
        Ok(_) => fs::remove_file(path).map_err(failed("remove the dead admin socket")),
    }
}
