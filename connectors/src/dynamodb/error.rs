//! The SDK's errors as the store's: by what the caller can do, in words that name operation and table.
//!
//! Answers are told apart by their error code and not by the SDK's type for each operation: DynamoDB answers
//! with codes that are in no operation's list, `ValidationException` among them. No request or response is
//! printed; they hold what people wrote, and signatures.

use std::error::Error;

use aws_sdk_dynamodb::error::{ProvideErrorMetadata, SdkError};

use super::attempts::{Attempts, never_connected};
use crate::store::{Name, Remedy, StoreError};

/// What was being done when an error came.
#[derive(Debug, Clone)]
pub(super) struct Doing {
    operation: &'static str,
    table: Name,
    index: Option<Name>,
}

impl Doing {
    pub(super) fn new(operation: &'static str, table: &Name) -> Self {
        Self { operation, table: table.clone(), index: None }
    }

    pub(super) fn with_index(mut self, index: Option<&Name>) -> Self {
        self.index = index.cloned();
        self
    }

    /// One call that touches several tables; the server does not tell which of them it means.
    pub(super) fn with_tables<'a>(operation: &'static str, tables: impl Iterator<Item = &'a Name>) -> Self {
        let mut names: Vec<_> = tables.map(Name::as_str).collect();
        names.sort_unstable();
        names.dedup();
        Self { operation, table: names.join("' or '").into(), index: None }
    }

    pub(super) fn table(&self) -> &Name {
        &self.table
    }

    /// A call that changes nothing failed: it may simply be repeated.
    pub(super) fn read_failed<E: ProvideErrorMetadata>(&self, error: &SdkError<E>) -> StoreError {
        match self.refusal(error) {
            Some(refusal) => refusal,
            None => StoreError::Unavailable(self.said(cause(error))),
        }
    }

    /// A write failed: whether it happened is known only if every try was refused or never sent.
    pub(super) fn write_failed<E: ProvideErrorMetadata>(
        &self,
        error: &SdkError<E>,
        attempts: &Attempts,
    ) -> StoreError {
        match self.refusal(error) {
            // Refusing a later try says nothing about an earlier one, unless all would be refused alike.
            Some(refusal) if refusal.remedy() == Remedy::Retry && attempts.may_have_happened() => {
                StoreError::UnknownOutcome(format!("an earlier try was not answered, and now {refusal}"))
            }
            Some(refusal) => refusal,
            None if attempts.may_have_happened() => StoreError::UnknownOutcome(self.said(cause(error))),
            None => StoreError::Unavailable(self.said(cause(error))),
        }
    }

    pub(super) fn invalid(&self, why: impl std::fmt::Display) -> StoreError {
        StoreError::Invalid(self.said(why))
    }

    pub(super) fn throttled(&self, why: impl std::fmt::Display) -> StoreError {
        StoreError::Throttled(self.said(why))
    }

    fn said(&self, what: impl std::fmt::Display) -> String {
        let Self { operation, table, .. } = self;
        format!("table '{table}': {operation}: {what}")
    }

    /// What the server said, if it answered and did not merely fail.
    fn refusal<E: ProvideErrorMetadata>(&self, error: &SdkError<E>) -> Option<StoreError> {
        if let SdkError::ConstructionFailure(_) = error {
            return Some(self.invalid("the request is incomplete"));
        }
        let SdkError::ServiceError(answer) = error else { return None };
        if answer.raw().status().as_u16() >= 500 {
            return None;
        }
        let code = answer.err().code().unwrap_or("an error without a code");
        let message = answer.err().message().unwrap_or("no reason given");
        Some(match code {
            "ResourceNotFoundException" => StoreError::NoSuchTable { table: self.table.clone() },
            "ValidationException" => self.validation(message),
            "ProvisionedThroughputExceededException"
            | "ThrottlingException"
            | "RequestLimitExceeded"
            | "LimitExceededException" => self.throttled(message),
            "TransactionConflictException" => StoreError::Conflict,
            // An earlier try of the same transaction is not done yet.
            "TransactionInProgressException" => StoreError::UnknownOutcome(self.said(message)),
            "IdempotentParameterMismatchException" => StoreError::TokenReused,
            "AccessDeniedException" => {
                StoreError::NotAllowed { access: self.operation, name: self.table.clone() }
            }
            "UnrecognizedClientException"
            | "InvalidSignatureException"
            | "IncompleteSignatureException"
            | "MissingAuthenticationTokenException"
            | "ExpiredTokenException" => {
                StoreError::Unavailable(self.said(format_args!("the credentials were refused: {code}")))
            }
            _ => self.invalid(format_args!("{code}: {message}")),
        })
    }

    fn validation(&self, message: &str) -> StoreError {
        match &self.index {
            Some(index) if message.contains("does not have the specified index") => {
                StoreError::NoSuchIndex { table: self.table.clone(), index: index.clone() }
            }
            _ => self.invalid(message),
        }
    }
}

/// Why there was no useful answer, without the request or the response.
fn cause<E>(error: &SdkError<E>) -> String {
    match error {
        SdkError::TimeoutError(_) => "no answer within the time allowed".to_owned(),
        SdkError::DispatchFailure(failure) => {
            let connector_error = failure.as_connector_error();
            let text = connector_error.map_or_else(|| "not sent".to_owned(), |error| innermost(error));
            match connector_error {
                Some(error) if never_connected(error) => format!("cannot connect: {text}"),
                Some(error) if error.is_timeout() => format!("no answer within the time allowed: {text}"),
                _ => text,
            }
        }
        SdkError::ResponseError(_) => "the answer broke off or cannot be read".to_owned(),
        SdkError::ServiceError(answer) => {
            format!("the server failed with status {}", answer.raw().status().as_u16())
        }
        _ => "the call failed".to_owned(),
    }
}

/// The first cause, such as `Connection refused (os error 111)`; what stands around it repeats in other
/// words.
fn innermost(error: &(dyn Error + 'static)) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

/// The code of the server's answer, if it is one that the caller knows what to do about.
pub(super) fn code<E: ProvideErrorMetadata>(error: &SdkError<E>) -> Option<&str> {
    error.as_service_error().and_then(ProvideErrorMetadata::code)
}
