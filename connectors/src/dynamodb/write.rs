//! Single writes.

use async_trait::async_trait;
use aws_sdk_dynamodb::operation::delete_item::DeleteItemError;
use aws_sdk_dynamodb::operation::put_item::PutItemError;
use aws_sdk_dynamodb::operation::update_item::UpdateItemError;
use aws_sdk_dynamodb::types::ReturnValue;

use super::DynamoDb;
use super::attempts::Attempts;
use super::convert::{Attributes, item_from, key_to_attributes, to_attributes};
use super::error::Doing;
use super::expression::{Placeholders, conditional};
use super::limits::{check_item, check_returning};
use crate::store::{
    Action, BatchWrite, Condition, Durability, Item, Key, Name, Result, Returning, StoreError, Transaction,
    Update, Write, WriteStore,
};

#[async_trait]
impl WriteStore for DynamoDb {
    async fn write(&self, write: Write, returning: Returning, _: Durability) -> Result<Option<Item>> {
        let client =
            if may_happen_twice(&write, returning) { &self.clients.repeatable } else { &self.clients.once };
        match write {
            Write::Put { table, item, condition } => {
                self.put(client, &table, item, condition.as_ref(), returning).await
            }
            Write::Update { table, key, update, condition } => {
                self.update(client, &table, key, &update, condition.as_ref(), returning).await
            }
            Write::Delete { table, key, condition } => {
                self.delete(client, &table, key, condition.as_ref(), returning).await
            }
            Write::Check { table, .. } => {
                Err(Doing::new("check", &table)
                    .invalid("a check alone is a read; it belongs in a transaction"))
            }
        }
    }

    async fn batch_write(&self, writes: Vec<BatchWrite>) -> Result<()> {
        self.write_in_batches(writes).await
    }

    async fn transact(&self, transaction: Transaction) -> Result<()> {
        self.write_together(transaction).await
    }
}

/// Whether doing it twice is the same as doing it once, for the item and for the answer.
fn may_happen_twice(write: &Write, returning: Returning) -> bool {
    let same_item = match write {
        Write::Put { .. } | Write::Delete { .. } | Write::Check { .. } => true,
        Write::Update { update, .. } => {
            !update.actions().iter().any(|action| matches!(action, Action::Add(..)))
        }
    };
    // The second time, a condition would be checked against the first one's effect, and the old item be the
    // new.
    same_item && write.condition().is_none() && returning != Returning::Old
}

impl DynamoDb {
    async fn put(
        &self,
        client: &aws_sdk_dynamodb::Client,
        table: &Name,
        item: Item,
        condition: Option<&Condition>,
        returning: Returning,
    ) -> Result<Option<Item>> {
        let doing = Doing::new("put item", table);
        check_item(&doing, &item)?;
        check_returning(&doing, returning)?;
        let mut placeholders = Placeholders::default();
        let condition = condition.map(|condition| placeholders.condition(condition));
        let request =
            client.put_item().return_values(return_value(returning)).set_item(Some(to_attributes(item)));
        let request = conditional!(request, self.tables.full_name(table), condition, placeholders);
        let attempts = Attempts::default();
        let sent = request.customize().interceptor(attempts.clone()).send().await;
        match sent {
            Ok(answer) => returned(answer.attributes, returning),
            Err(error) => match error.as_service_error() {
                Some(PutItemError::ConditionalCheckFailedException(failed)) => {
                    Err(condition_failed(failed.item.clone())?)
                }
                _ => Err(doing.write_failed(&error, &attempts)),
            },
        }
    }

    async fn update(
        &self,
        client: &aws_sdk_dynamodb::Client,
        table: &Name,
        key: Key,
        update: &Update,
        condition: Option<&Condition>,
        returning: Returning,
    ) -> Result<Option<Item>> {
        let doing = Doing::new("update item", table);
        let mut placeholders = Placeholders::default();
        let update = placeholders.update(update);
        let condition = condition.map(|condition| placeholders.condition(condition));
        let request = client
            .update_item()
            .return_values(return_value(returning))
            .set_key(Some(key_to_attributes(key)))
            .set_update_expression(update);
        let request = conditional!(request, self.tables.full_name(table), condition, placeholders);
        let attempts = Attempts::default();
        let sent = request.customize().interceptor(attempts.clone()).send().await;
        match sent {
            Ok(answer) => returned(answer.attributes, returning),
            Err(error) => match error.as_service_error() {
                Some(UpdateItemError::ConditionalCheckFailedException(failed)) => {
                    Err(condition_failed(failed.item.clone())?)
                }
                _ => Err(doing.write_failed(&error, &attempts)),
            },
        }
    }

    async fn delete(
        &self,
        client: &aws_sdk_dynamodb::Client,
        table: &Name,
        key: Key,
        condition: Option<&Condition>,
        returning: Returning,
    ) -> Result<Option<Item>> {
        let doing = Doing::new("delete item", table);
        check_returning(&doing, returning)?;
        let mut placeholders = Placeholders::default();
        let condition = condition.map(|condition| placeholders.condition(condition));
        let request =
            client.delete_item().return_values(return_value(returning)).set_key(Some(key_to_attributes(key)));
        let request = conditional!(request, self.tables.full_name(table), condition, placeholders);
        let attempts = Attempts::default();
        let sent = request.customize().interceptor(attempts.clone()).send().await;
        match sent {
            Ok(answer) => returned(answer.attributes, returning),
            Err(error) => match error.as_service_error() {
                Some(DeleteItemError::ConditionalCheckFailedException(failed)) => {
                    Err(condition_failed(failed.item.clone())?)
                }
                _ => Err(doing.write_failed(&error, &attempts)),
            },
        }
    }
}

fn return_value(returning: Returning) -> ReturnValue {
    match returning {
        Returning::Nothing => ReturnValue::None,
        Returning::Old => ReturnValue::AllOld,
        Returning::New => ReturnValue::AllNew,
        Returning::UpdatedNew => ReturnValue::UpdatedNew,
    }
}

fn returned(attributes: Option<Attributes>, returning: Returning) -> Result<Option<Item>> {
    let item = attributes.map(item_from).transpose()?;
    Ok(match returning {
        Returning::Nothing => None,
        Returning::Old => item.filter(|item| !item.is_empty()),
        // After an update there is an item, even if the attributes it named are gone.
        Returning::New | Returning::UpdatedNew => Some(item.unwrap_or_default()),
    })
}

/// With the item that did not meet the condition, if there is one and the server tells.
fn condition_failed(current: Option<Attributes>) -> Result<StoreError> {
    let current = current.filter(|attributes| !attributes.is_empty()).map(item_from).transpose()?;
    Ok(StoreError::ConditionFailed { current: current.map(Box::new) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_changes_nothing_the_second_time_may_happen_twice() {
        let key = || Key::new("k", "a");
        let put = || Write::put("t", Item::new().with("k", "a"));
        let set = Write::update("t", key(), Update::new().set("a", 1).set_if_missing("b", 2).remove("c"));
        let twice = |write: &Write, returning| may_happen_twice(write, returning);
        assert!(twice(&put(), Returning::Nothing));
        assert!(twice(&Write::delete("t", key()), Returning::Nothing));
        assert!(twice(&set, Returning::UpdatedNew));

        assert!(!twice(&put(), Returning::Old), "the second time the old item would be the new one");
        assert!(!twice(&put().only_if(Condition::missing("k")), Returning::Nothing));
        let add = Write::update("t", key(), Update::new().set("a", 1).add("n", 1));
        assert!(!twice(&add, Returning::UpdatedNew));
    }
}
