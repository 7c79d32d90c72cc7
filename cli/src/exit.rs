//! How the command ends; `courant --help` documents the codes.

use std::process::ExitCode;

use courant_edge::admin::ClientError;

/// An ending that has said all there is to say; the code is what remains.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{self:?}")]
pub enum Exit {
    /// The diagnostics are printed.
    BadConfiguration,
    /// The differences are printed.
    TestsFailed,
    /// What is otherwise than in the model is printed.
    Drifted,
    /// What was found in the data is printed.
    Violated,
}

/// The code for an error, which is printed unless it has been already.
pub fn code_for(error: &anyhow::Error) -> ExitCode {
    if let Some(exit) = error.downcast_ref::<Exit>() {
        return ExitCode::from(match exit {
            Exit::BadConfiguration | Exit::Drifted => 3,
            Exit::TestsFailed => 4,
            Exit::Violated => 6,
        });
    }
    eprintln!("error: {error:#}");
    let nobody = matches!(error.downcast_ref::<ClientError>(), Some(ClientError::NotRunning { .. }));
    ExitCode::from(if nobody { 5 } else { 1 })
}
