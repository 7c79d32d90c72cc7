//! What may be tried again, and what is known when a write fails.
//!
//! The SDK repeats a call after a time-out, a broken connection or an internal error of the server. For a
//! read, a transaction with its token or a plain put that is right. For an `ADD`, or for a write with a
//! condition, it is not: the first try may have happened, and the second would add again, or meet its own
//! effect and say that the condition does not hold. Such writes are tried again only when the server refused
//! them or was never reached ([`OnlyIfRefused`]).
//!
//! [`Attempts`] watches the tries of one write, because the last error does not tell: a write whose first try
//! timed out and whose second found nobody there may well have happened.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use aws_sdk_dynamodb::config::interceptors::{
    BeforeTransmitInterceptorContextRef, FinalizerInterceptorContextRef, InterceptorContext,
};
use aws_sdk_dynamodb::config::retry::{ClassifyRetry, RetryAction};
use aws_sdk_dynamodb::config::{ConfigBag, Intercept, RuntimeComponents};
use aws_smithy_runtime_api::box_error::BoxError;
use aws_smithy_runtime_api::client::interceptors::context::Error;
use aws_smithy_runtime_api::client::orchestrator::OrchestratorError;
use aws_smithy_runtime_api::client::result::ConnectorError;

/// Forbids another try of what may have happened. Runs after the SDK's own classifiers and so has the last
/// word.
#[derive(Debug)]
pub(super) struct OnlyIfRefused;

impl ClassifyRetry for OnlyIfRefused {
    fn classify_retry(&self, context: &InterceptorContext) -> RetryAction {
        let status = context.response().map(|response| response.status().as_u16());
        match context.output_or_error() {
            Some(Err(error)) if may_have_happened(error, status) => RetryAction::RetryForbidden,
            _ => RetryAction::NoActionIndicated,
        }
    }

    fn name(&self) -> &'static str {
        "only if refused"
    }
}

/// Watches the tries of one write.
#[derive(Debug, Clone, Default)]
pub(super) struct Attempts(Arc<State>);

#[derive(Debug, Default)]
struct State {
    /// A try was begun and has not ended. Stays true when the time for the whole call runs out during a try.
    under_way: AtomicBool,
    /// A try ended without telling whether it happened.
    unclear: AtomicBool,
}

impl Attempts {
    /// Whether any try may have done its work, so that only reading can tell.
    pub(super) fn may_have_happened(&self) -> bool {
        self.0.under_way.load(Ordering::Acquire) || self.0.unclear.load(Ordering::Acquire)
    }
}

#[aws_smithy_runtime_api::client::interceptors::dyn_dispatch_hint]
impl Intercept for Attempts {
    fn name(&self) -> &'static str {
        "attempts of a write"
    }

    fn read_before_transmit(
        &self,
        _: &BeforeTransmitInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        self.0.under_way.store(true, Ordering::Release);
        Ok(())
    }

    fn read_after_attempt(
        &self,
        context: &FinalizerInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let status = context.response().map(|response| response.status().as_u16());
        if let Some(Err(error)) = context.output_or_error()
            && may_have_happened(error, status)
        {
            self.0.unclear.store(true, Ordering::Release);
        }
        self.0.under_way.store(false, Ordering::Release);
        Ok(())
    }
}

/// Whether a failed try may have done its work: it was sent, and no answer said that it was refused.
fn may_have_happened(error: &OrchestratorError<Error>, status: Option<u16>) -> bool {
    // AWS on its internal errors: the write may have succeeded or not.
    let internal_error = status.is_some_and(|status| status >= 500);
    let broke = error.as_connector_error().is_some_and(|error| !never_connected(error));
    internal_error || broke || error.is_timeout_error() || error.is_response_error()
}

/// Whether not even a connection was made, so that nothing can have been sent.
pub(super) fn never_connected(error: &ConnectorError) -> bool {
    let mut next: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = next {
        if let Some(http) = error.downcast_ref::<hyper_util::client::legacy::Error>() {
            return http.is_connect();
        }
        next = error.source();
    }
    false
}
