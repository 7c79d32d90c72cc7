//! A policy document for DynamoDB.
//!
//! A transaction has no action of its own: AWS asks for those of its parts. Checking a condition in one is reading, as
//! it is for handles in the process. An index is named where the model has it, and only for queries.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::super::grant::{Access, Grant};
use crate::model::tables::TABLES;
use crate::store::{Name, TableSchema};

/// What names a table to AWS, beside its own name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableAddress {
    /// Such as `eu-central-1`.
    pub region: String,
    /// Twelve digits, or a placeholder for the tool that applies the policy.
    pub account: String,
    /// What every table's name begins with.
    pub table_prefix: String,
}

impl TableAddress {
    fn table(&self, name: &Name) -> String {
        let Self { region, account, table_prefix } = self;
        format!("arn:aws:dynamodb:{region}:{account}:table/{table_prefix}{name}")
    }
}

/// Some actions on some resources.
struct Statement {
    id: &'static str,
    actions: &'static [&'static str],
    resources: BTreeSet<String>,
}

const READ: &[&str] =
    &["dynamodb:BatchGetItem", "dynamodb:ConditionCheckItem", "dynamodb:GetItem", "dynamodb:Query"];
const QUERY: &[&str] = &["dynamodb:Query"];
const WRITE: &[&str] =
    &["dynamodb:BatchWriteItem", "dynamodb:DeleteItem", "dynamodb:PutItem", "dynamodb:UpdateItem"];
const SCAN: &[&str] = &["dynamodb:Scan"];
const FOLLOW: &[&str] = &["dynamodb:DescribeStream", "dynamodb:GetRecords", "dynamodb:GetShardIterator"];
/// Where a table's stream is.
const FIND_STREAM: &[&str] = &["dynamodb:DescribeTable"];
/// The connector asks for the keys of tables that the model does not know.
const LEARN_KEYS: &[&str] = &["dynamodb:DescribeTable", "dynamodb:DescribeTimeToLive"];

/// The policy that a grant comes to, or `None` if it has no table.
pub fn iam_policy(grant: &Grant, address: &TableAddress) -> Option<Value> {
    let with = |access: Access| grant.tables().filter(move |(_, granted)| *granted == access);
    let tables = |access| with(access).map(|(name, _)| address.table(name)).collect::<BTreeSet<_>>();
    let indexes = with(Access::Read).flat_map(|(name, _)| indexes(address, name)).collect();
    let streams = with(Access::Stream).map(|(name, _)| format!("{}/stream/*", address.table(name)));
    let unknown = grant.tables().filter(|(name, _)| schema(name).is_none());
    let statements = [
        Statement { id: "Read", actions: READ, resources: tables(Access::Read) },
        Statement { id: "QueryIndexes", actions: QUERY, resources: indexes },
        Statement { id: "Write", actions: WRITE, resources: tables(Access::Write) },
        Statement { id: "Scan", actions: SCAN, resources: tables(Access::Scan) },
        Statement { id: "FindStreams", actions: FIND_STREAM, resources: tables(Access::Stream) },
        Statement { id: "FollowStreams", actions: FOLLOW, resources: streams.collect() },
        Statement {
            id: "LearnKeys",
            actions: LEARN_KEYS,
            resources: unknown.map(|(name, _)| address.table(name)).collect(),
        },
    ];
    let needed = statements.into_iter().filter(|statement| !statement.resources.is_empty());
    let needed: Vec<Value> = needed.map(Statement::into_json).collect();
    (!needed.is_empty()).then(|| json!({"Version": "2012-10-17", "Statement": needed}))
}

impl Statement {
    fn into_json(self) -> Value {
        json!({"Sid": self.id, "Effect": "Allow", "Action": self.actions, "Resource": self.resources})
    }
}

fn schema(table: &Name) -> Option<&'static TableSchema> {
    TABLES.into_iter().find(|schema| schema.name == *table)
}

fn indexes(address: &TableAddress, table: &Name) -> Vec<String> {
    let arn = address.table(table);
    match schema(table) {
        Some(schema) => schema.indexes.iter().map(|index| format!("{arn}/index/{}", index.name)).collect(),
        None => vec![format!("{arn}/index/*")],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address() -> TableAddress {
        TableAddress {
            region: "eu-central-1".into(),
            account: "123456789012".into(),
            table_prefix: "dev_".into(),
        }
    }

    fn arn(rest: &str) -> String {
        format!("arn:aws:dynamodb:eu-central-1:123456789012:table/{rest}")
    }

    fn statements(grant: &Grant) -> Value {
        let policy = iam_policy(grant, &address()).expect("there is something to allow");
        assert_eq!(policy["Version"], "2012-10-17");
        policy["Statement"].clone()
    }

    #[test]
    fn without_a_table_there_is_no_policy() {
        let grant = Grant::nothing().topic("messages", Access::Write).family("rate", Access::Read);
        assert_eq!(iam_policy(&grant, &address()), None);
    }

    #[test]
    fn reading_is_looking_up_with_the_indexes_of_the_model() {
        let grant = Grant::nothing().table("messages", Access::Read).table("chat_memberships", Access::Read);
        assert_eq!(
            statements(&grant),
            json!([
                {
                    "Sid": "Read",
                    "Effect": "Allow",
                    "Action": [
                        "dynamodb:BatchGetItem",
                        "dynamodb:ConditionCheckItem",
                        "dynamodb:GetItem",
                        "dynamodb:Query",
                    ],
                    "Resource": [arn("dev_chat_memberships"), arn("dev_messages")],
                },
                {
                    "Sid": "QueryIndexes",
                    "Effect": "Allow",
                    "Action": ["dynamodb:Query"],
                    "Resource": [arn("dev_chat_memberships/index/user_chats-index")],
                },
            ])
        );
    }

    #[test]
    fn writing_does_not_include_reading() {
        assert_eq!(
            statements(&Grant::nothing().table("messages", Access::Write)),
            json!([{
                "Sid": "Write",
                "Effect": "Allow",
                "Action": [
                    "dynamodb:BatchWriteItem",
                    "dynamodb:DeleteItem",
                    "dynamodb:PutItem",
                    "dynamodb:UpdateItem",
                ],
                "Resource": [arn("dev_messages")],
            }])
        );
    }

    #[test]
    fn reading_everything_is_granted_apart() {
        let grant = Grant::nothing().table("messages", Access::Scan).table("chats", Access::Stream);
        assert_eq!(
            statements(&grant),
            json!([
                {
                    "Sid": "Scan",
                    "Effect": "Allow",
                    "Action": ["dynamodb:Scan"],
                    "Resource": [arn("dev_messages")],
                },
                {
                    "Sid": "FindStreams",
                    "Effect": "Allow",
                    "Action": ["dynamodb:DescribeTable"],
                    "Resource": [arn("dev_chats")],
                },
                {
                    "Sid": "FollowStreams",
                    "Effect": "Allow",
                    "Action": ["dynamodb:DescribeStream", "dynamodb:GetRecords", "dynamodb:GetShardIterator"],
                    "Resource": [arn("dev_chats/stream/*")],
                },
            ])
        );
    }

    #[test]
    fn a_table_beyond_the_model_may_be_described() {
        let grant = Grant::nothing().table("audit", Access::Write);
        let described = json!({
            "Sid": "LearnKeys",
            "Effect": "Allow",
            "Action": ["dynamodb:DescribeTable", "dynamodb:DescribeTimeToLive"],
            "Resource": [arn("dev_audit")],
        });
        assert_eq!(statements(&grant)[1], described);
    }
}
