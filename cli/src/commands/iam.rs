//! `courant iam`: what pipelines declare, as access rules of the servers they touch.

use std::path::Path;

use courant_connectors::capability::policy::{
    KafkaConsumer, RedisServers, TableAddress, iam_policy, kafka_acls, redis_acl,
};
use courant_connectors::connections::{Connections, LiveConnection, LogConnection, StoreConnection};
use courant_pipeline::config::{StageNode, Topology};
use courant_pipeline::spec::{Access, Level, Mode};
use serde::Serialize;
use serde_json::Value;

use super::{named, say};
use crate::args::{Iam, IamFormat};
use crate::{app, settings};

pub(super) fn run(file: &Path, options: &Iam) -> anyhow::Result<()> {
    let loaded = settings::load(file)?;
    let connections: Connections = loaded.section("connections");
    let pipelines = if options.pipelines.is_empty() {
        Vec::new() // a gateway's
    } else {
        named(loaded.topologies, &options.pipelines)?
    };
    let rules = Rules::of(&pipelines, &connections, options);
    if options.json {
        return say(&serde_json::to_string_pretty(&rules)?);
    }
    let edge = options.edge.then_some("the edge");
    let who: Vec<&str> = options.pipelines.iter().map(String::as_str).chain(edge).collect();
    let who = who.join(", ");
    let Some(format) = options.format else {
        let none = || format!("`{who}` needs no access: its stages touch neither store, log nor live state");
        return say(&rules.all()?.unwrap_or_else(none));
    };
    let Some(text) = rules.only(format)? else {
        // Not on standard output, which is meant for the server.
        eprintln!("note: `{who}` needs no such rules");
        return Ok(());
    };
    say(&text)
}

/// The rules of each server; empty where nothing of it is touched.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Rules {
    iam: Option<Value>,
    kafka: Vec<String>,
    redis: Option<String>,
}

impl Rules {
    fn of(pipelines: &[Topology], connections: &Connections, options: &Iam) -> Self {
        let stages = || pipelines.iter().flat_map(|pipeline| &pipeline.stages);
        let grant = courant_stages::backends::grant(stages().flat_map(|stage| &stage.access));
        let grant = if options.edge { grant.and(app::edge_grant()) } else { grant };
        let groups = pipelines
            .iter()
            .flat_map(|pipeline| pipeline.stages.iter().filter_map(|stage| group(&pipeline.name, stage)));
        let user = options.user.clone().unwrap_or_else(|| match (&*options.pipelines, options.edge) {
            ([pipeline], false) => format!("courant-{pipeline}"),
            ([], _) => "courant-edge".to_owned(),
            _ => "courant".to_owned(),
        });
        let consumer =
            KafkaConsumer { user: user.clone(), brokers: brokers(connections), groups: groups.collect() };
        Self {
            iam: iam_policy(&grant, &address(connections, options)),
            kafka: kafka_acls(&grant, &consumer),
            redis: redis_acl(&grant, &user, servers(connections)),
        }
    }

    fn only(&self, format: IamFormat) -> anyhow::Result<Option<String>> {
        Ok(match format {
            IamFormat::Iam => self.iam.as_ref().map(serde_json::to_string_pretty).transpose()?,
            IamFormat::Kafka => (!self.kafka.is_empty()).then(|| self.kafka.join("\n")),
            IamFormat::Redis => self.redis.clone(),
        })
    }

    fn all(&self) -> anyhow::Result<Option<String>> {
        let mut parts = Vec::new();
        for (title, format) in [
            ("store: IAM policy", IamFormat::Iam),
            ("log: Kafka ACLs", IamFormat::Kafka),
            ("live: Redis ACL", IamFormat::Redis),
        ] {
            parts.extend(self.only(format)?.map(|text| format!("# {title}\n{text}\n")));
        }
        Ok((!parts.is_empty()).then(|| parts.join("\n")))
    }
}

/// The group in which a stage reads the log: the one it names, or else its pipeline's.
fn group(pipeline: &str, stage: &StageNode) -> Option<String> {
    let reads = |access: &Access| (access.level, access.mode) == (Level::Log, Mode::Read);
    let named = || stage.params.get("group").and_then(Value::as_str).unwrap_or(pipeline);
    stage.access.iter().any(reads).then(|| named().to_owned())
}

fn address(connections: &Connections, options: &Iam) -> TableAddress {
    let (region, table_prefix) = match &connections.store {
        StoreConnection::DynamoDb(config) => (config.region.clone(), config.table_prefix.clone()),
        StoreConnection::Embedded(_) => (None, String::new()),
    };
    let region = region.unwrap_or_else(|| "${AWS_REGION}".to_owned());
    TableAddress { region, account: options.account.clone(), table_prefix }
}

fn brokers(connections: &Connections) -> String {
    match &connections.log {
        LogConnection::Kafka(config) => config.brokers.clone(),
        LogConnection::Embedded(_) => "BROKER:9092".to_owned(),
    }
}

fn servers(connections: &Connections) -> RedisServers {
    match &connections.live {
        LiveConnection::Redis(config) if !config.urls.is_empty() => RedisServers::Cluster,
        LiveConnection::Redis(config) if config.url.as_deref().is_some_and(names_a_database) => {
            RedisServers::NumberedDatabase
        }
        LiveConnection::Redis(_) | LiveConnection::Embedded {} => RedisServers::Single,
    }
}

/// Whether a URL ends in a number other than the first: `redis://host:6379/1`.
fn names_a_database(url: &str) -> bool {
    let after_scheme = url.split_once("://").map_or(url, |(_, rest)| rest);
    let path = after_scheme.split_once('/').map_or("", |(_, path)| path);
    let number = path.split(['?', '#']).next().unwrap_or_default();
    !number.is_empty() && number != "0"
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use clap::Parser as _;
    use courant_pipeline::StageSpec;
    use courant_pipeline::config::{BatchLimits, OnError, Plane, Policy, RetryPolicy};
    use courant_pipeline::spec::{BuildContext, Built, JSON, Problem, StageConfig};
    use serde_json::json;

    use super::*;
    use crate::args::{Cli, Command};

    #[derive(serde::Deserialize, schemars::JsonSchema)]
    struct Nothing {}

    impl StageConfig for Nothing {
        fn build(self, _: &BuildContext<'_>) -> Result<Built, Vec<Problem>> {
            Err(Vec::new())
        }
    }

    static ANY_KIND: StageSpec = StageSpec::source::<Nothing>("any", JSON);

    fn stage(params: Value, access: &[(Level, Mode, &str)]) -> StageNode {
        let access = access.iter().map(|&(level, mode, name)| Access { level, mode, name: name.to_owned() });
        StageNode {
            name: Arc::from("stage"),
            spec: &ANY_KIND,
            params,
            input: None,
            outputs: Vec::new(),
            access: access.collect(),
            rekeys: false,
            policy: Policy {
                lanes: None,
                batch: BatchLimits::default(),
                buffer: None,
                retry: RetryPolicy::default(),
                on_error: OnError::DeadLetter,
                dead_letter_queue: Arc::from("letters"),
            },
        }
    }

    fn pipeline(name: &str, stages: Vec<StageNode>) -> Topology {
        let entry = serde_json::from_value(json!({"name": name, "stage": []})).unwrap();
        Topology {
            name: Arc::from(name),
            plane: Plane::Durability,
            reply_after: None,
            stages,
            serves: Vec::new(),
            entry: Arc::new(entry),
        }
    }

    fn rules(pipelines: &[Topology], connections: Value, arguments: &[&str]) -> Rules {
        let names = pipelines.iter().map(|pipeline| pipeline.name.to_string());
        let line = ["courant", "iam"].map(str::to_owned).into_iter().chain(names);
        let line = line.chain(arguments.iter().map(|&argument| argument.to_owned()));
        let Some(Command::Iam(options)) = Cli::parse_from(line).command else { panic!("it is `iam`") };
        Rules::of(pipelines, &serde_json::from_value(connections).unwrap(), &options)
    }

    #[test]
    fn declarations_become_rules_with_the_names_of_the_connections() {
        let ingest = pipeline(
            "ingest",
            vec![
                stage(
                    json!({}),
                    &[(Level::Store, Mode::Write, "messages"), (Level::Store, Mode::Read, "chats")],
                ),
                stage(json!({}), &[(Level::Log, Mode::Write, "messages.persisted")]),
                stage(json!({}), &[(Level::Live, Mode::Fill, "user_presence")]),
            ],
        );
        let connections = json!({
            "store": {"kind": "dynamodb", "region": "eu-central-1", "table_prefix": "dev_"},
            "log": {"kind": "kafka", "brokers": "a:9092"},
            "live": {"kind": "redis", "url": "redis://h"},
        });
        let rules = rules(&[ingest], connections, &["--account", "123456789012"]);
        let iam = rules.iam.unwrap();
        let arn = "arn:aws:dynamodb:eu-central-1:123456789012:table/dev_";
        assert_eq!(iam["Statement"][0]["Resource"], json!([format!("{arn}chats")]));
        assert_eq!(iam["Statement"][1]["Resource"], json!([format!("{arn}messages")]));
        assert_eq!(iam["Statement"].as_array().unwrap().len(), 2, "{iam}");
        let kafka = "kafka-acls.sh --bootstrap-server a:9092 --add --allow-principal User:courant-ingest \
                     --operation Write --topic messages.persisted";
        assert_eq!((rules.kafka.len(), rules.kafka[0].as_str()), (2, kafka));
        let redis =
            "ACL SETUSER courant-ingest on resetkeys resetchannels -@all %W~user_presence:* +ping +set";
        assert_eq!(rules.redis.unwrap(), redis);
    }

    #[test]
    fn a_gateway_reads_what_it_answers_from_and_writes_down_its_sockets() {
        let said = |rules: &Rules| rules.iam.as_ref().unwrap().to_string();
        let gateway = rules(&[], json!({}), &["--edge"]);
        let iam = said(&gateway);
        for read in ["table/messages\"", "table/delivery_state\"", "index/user_chats-index\""] {
            assert!(iam.contains(read), "{read}: {iam}");
        }
        assert!(!iam.contains("idempotency_keys") && !iam.contains("PutItem"), "{iam}");
        assert_eq!(gateway.kafka.len(), 1, "to see that the log answers: {:?}", gateway.kafka);
        let redis = gateway.redis.as_ref().unwrap();
        for told in ["courant-edge", "~rate:*", "~connection:*", "&sessions:revoked", "+subscribe"] {
            assert!(redis.contains(told), "{told}: {redis}");
        }
        assert!(!redis.contains("publish"), "{redis}");
        let reading = pipeline("p", vec![stage(json!({}), &[(Level::Store, Mode::Write, "messages")])]);
        let both = rules(&[reading], json!({}), &["--edge"]);
        assert!(said(&both).contains("PutItem") && said(&both).contains("table/users\""), "{}", said(&both));
        assert!(both.redis.unwrap().starts_with("ACL SETUSER courant on"));
    }

    #[test]
    fn a_group_is_the_one_that_is_named_or_the_pipelines() {
        let reading = [(Level::Log, Mode::Read, "chats.created")];
        let pipelines = [
            pipeline("first", vec![stage(json!({"group": "fanout"}), &reading)]),
            pipeline("second", vec![stage(json!({}), &reading)]),
            pipeline("third", vec![stage(json!({"group": "not-of-the-log"}), &[])]),
        ];
        let rules = rules(&pipelines, json!({}), &[]);
        let start = "kafka-acls.sh --bootstrap-server BROKER:9092 --add --allow-principal User:courant --operation Read";
        let expected = ["--topic chats.created", "--group fanout", "--group second"];
        assert_eq!(rules.kafka, expected.map(|resource| format!("{start} {resource}")));
        assert_eq!((rules.iam, rules.redis), (None, None));
    }

    #[test]
    fn another_database_than_the_first_is_named_at_the_end() {
        assert!(names_a_database("redis://h:6379/1") && names_a_database("rediss://h/12?protocol=resp3"));
        assert!(!names_a_database("redis://h:6379") && !names_a_database("redis://h/0"));
        assert!(!names_a_database("redis://h/") && !names_a_database("redis://h:6379/?protocol=resp3"));
    }

    #[test]
    fn what_the_connections_do_not_say_is_left_to_fill_in() {
        let reading = pipeline("p", vec![stage(json!({}), &[(Level::Store, Mode::Read, "messages")])]);
        let rules = rules(&[reading], json!({}), &[]);
        let arn = "arn:aws:dynamodb:${AWS_REGION}:${AWS_ACCOUNT_ID}:table/messages";
        assert_eq!(rules.iam.as_ref().unwrap()["Statement"][0]["Resource"], json!([arn]));
        assert!(rules.all().unwrap().unwrap().starts_with("# store: IAM policy\n{\n"));
        assert_eq!(rules.only(IamFormat::Redis).unwrap(), None);
    }
}
