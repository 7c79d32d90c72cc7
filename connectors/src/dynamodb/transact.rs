//! Several writes as one: all of them or none.
//!
//! Always with a token, the caller's or one that the SDK makes, so that the SDK may try again after a
//! time-out: DynamoDB answers a repeated token with the first outcome.

use aws_sdk_dynamodb::operation::transact_write_items::TransactWriteItemsError;
use aws_sdk_dynamodb::types::{CancellationReason, ConditionCheck, Delete, Put, TransactWriteItem, Update};

use super::DynamoDb;
use super::attempts::Attempts;
use super::convert::{item_from, key_to_attributes, to_attributes};
use super::error::Doing;
use super::expression::{Placeholders, conditional};
use super::limits::check_transaction;
use crate::store::{CancelReason, Result, StoreError, Transaction, Write};

/// A write that would have been fine, in the list of reasons.
const NO_REASON: &str = "None";

impl DynamoDb {
    pub(super) async fn write_together(&self, transaction: Transaction) -> Result<()> {
        let doing = Doing::with_tables("transact write items", transaction.writes.iter().map(Write::table));
        check_transaction(&doing, &transaction)?;
        let writes = transaction.writes.into_iter().map(|write| self.part(&doing, write));
        let attempts = Attempts::default();
        let sent = self
            .clients
            .repeatable
            .transact_write_items()
            .set_transact_items(Some(writes.collect::<Result<_>>()?))
            .set_client_request_token(transaction.token)
            .customize()
            .interceptor(attempts.clone())
            .send()
            .await;
        let Err(error) = sent else { return Ok(()) };
        match error.as_service_error() {
            Some(TransactWriteItemsError::TransactionCanceledException(canceled)) => {
                let reasons = canceled.cancellation_reasons().iter().map(cancel_reason);
                Err(StoreError::TransactionCanceled { reasons: reasons.collect::<Result<_>>()? })
            }
            _ => Err(doing.write_failed(&error, &attempts)),
        }
    }

    fn part(&self, doing: &Doing, write: Write) -> Result<TransactWriteItem> {
        let incomplete = |error| doing.invalid(error);
        let table = self.tables.full_name(write.table());
        let mut placeholders = Placeholders::default();
        let condition = write.condition().map(|condition| placeholders.condition(condition));
        let part = TransactWriteItem::builder();
        let part = match write {
            Write::Put { item, .. } => {
                let put = Put::builder().set_item(Some(to_attributes(item)));
                let put = conditional!(put, table, condition, placeholders);
                part.put(put.build().map_err(incomplete)?)
            }
            Write::Update { key, update, .. } => {
                let expression = placeholders.update(&update);
                let update = Update::builder().set_key(Some(key_to_attributes(key)));
                let update = update.set_update_expression(expression);
                let update = conditional!(update, table, condition, placeholders);
                part.update(update.build().map_err(incomplete)?)
            }
            Write::Delete { key, .. } => {
                let delete = Delete::builder().set_key(Some(key_to_attributes(key)));
                let delete = conditional!(delete, table, condition, placeholders);
                part.delete(delete.build().map_err(incomplete)?)
            }
            Write::Check { key, .. } => {
                let check = ConditionCheck::builder().set_key(Some(key_to_attributes(key)));
                let check = conditional!(check, table, condition, placeholders);
                part.condition_check(check.build().map_err(incomplete)?)
            }
        };
        Ok(part.build())
    }
}

fn cancel_reason(reason: &CancellationReason) -> Result<Option<CancelReason>> {
    let said = || reason.message().unwrap_or("no reason given").to_owned();
    Ok(Some(match reason.code().unwrap_or(NO_REASON) {
        NO_REASON => return Ok(None),
        "ConditionalCheckFailed" => {
            let current = reason.item().filter(|attributes| !attributes.is_empty()).cloned();
            let current = current.map(item_from).transpose()?;
            CancelReason::ConditionFailed { current: current.map(Box::new) }
        }
        "TransactionConflict" => CancelReason::Conflict,
        "ThrottlingError" | "ProvisionedThroughputExceeded" => CancelReason::Throttled,
        "ValidationError" => CancelReason::Invalid(said()),
        code => CancelReason::Invalid(format!("{code}: {}", said())),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use aws_sdk_dynamodb::types::AttributeValue;

    #[test]
    fn reasons_keep_what_the_server_tells() {
        let reason = |code: &str| CancellationReason::builder().code(code).message("m").build();
        let read = |reason: &CancellationReason| cancel_reason(reason).unwrap();
        assert_eq!(read(&reason("None")), None);
        assert_eq!(read(&reason("TransactionConflict")), Some(CancelReason::Conflict));
        assert_eq!(read(&reason("ThrottlingError")), Some(CancelReason::Throttled));
        assert_eq!(read(&reason("ProvisionedThroughputExceeded")), Some(CancelReason::Throttled));
        assert_eq!(read(&reason("ValidationError")), Some(CancelReason::Invalid("m".into())));
        assert_eq!(read(&reason("Strange")), Some(CancelReason::Invalid("Strange: m".into())));
        let failed = CancellationReason::builder()
            .code("ConditionalCheckFailed")
            .item("k", AttributeValue::S("a".into()))
            .build();
        let current = Some(Box::new(crate::store::Item::new().with("k", "a")));
        assert_eq!(read(&failed), Some(CancelReason::ConditionFailed { current }));
    }
}
