//! A kind with every shape of parameter that config structs have.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use courant_pipeline::StageSpec;
use courant_pipeline::config::BatchLimits;
use courant_pipeline::spec::{BuildContext, Built, Effect, Gives, JSON, Problem, StageConfig, Takes};
use courant_pipeline::units::{Size, Span};
use schemars::JsonSchema;
use serde::Deserialize;

use super::fields::{Field, fields};
use super::{list, page, reference};

/// Where to begin.
#[derive(Deserialize, JsonSchema, Default, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
enum StartAt {
    /// The first record
    /// there is.
    #[default]
    Oldest,
    /// Only new ones.
    Newest,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[allow(dead_code, reason = "only its schema is looked at")]
struct Route {
    /// A jq test.
    when: String,
    /// Where | to <send>.
    to: Option<String>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[allow(dead_code, reason = "only its schema is looked at")]
struct Config {
    /// Topics to read,
    /// at least one.
    topics: Vec<String>,
    #[serde(default)]
    start: StartAt,
    /// Seconds to wait.
    #[serde(default)]
    wait: Span,
    size: Option<Size>,
    #[serde(default)]
    batch: BatchLimits,
    routes: Vec<Route>,
    headers: Option<BTreeMap<String, String>>,
    named: BTreeMap<String, Route>,
    lanes: Option<NonZeroU32>,
    extra: serde_json::Value,
}

impl StageConfig for Config {
    fn build(self, _: &BuildContext<'_>) -> Result<Built, Vec<Problem>> {
        Err(Vec::new())
    }
}

#[derive(Deserialize, JsonSchema)]
struct Nothing {}

impl StageConfig for Nothing {
    fn build(self, _: &BuildContext<'_>) -> Result<Built, Vec<Problem>> {
        Err(Vec::new())
    }
}

static CONSUME: StageSpec = StageSpec::source::<Config>("kafka-consume", JSON)
    .summary("Reads topics of the log.")
    .example("\n[[pipeline.stage]]\nkind = \"kafka-consume\"\n");
static FILE_SOURCE: StageSpec = StageSpec::source::<Nothing>("file", JSON).summary("Reads a file.");
static FILE_SINK: StageSpec = StageSpec::sink::<Nothing>("file", Takes::Only(&["json", "delivery"]))
    .effect(Effect::ExternalEffect)
    .summary("Appends to a file.");
static FILTER: StageSpec =
    StageSpec::transform::<Nothing>("filter", Takes::Any, Gives::Same).summary("Keeps what passes a test.");

static SPECS: [&StageSpec; 4] = [&FILE_SINK, &CONSUME, &FILTER, &FILE_SOURCE];

fn field(key: &str) -> Field {
    let all = fields((CONSUME.schema)().as_value());
    let keys: Vec<_> = all.iter().map(|field| field.key.clone()).collect();
    all.into_iter().find(|field| field.key == key).unwrap_or_else(|| panic!("{key} in {keys:?}"))
}

#[test]
fn kinds_are_listed_by_role_and_name() {
    let expected = "\
sources
  file           Reads a file.
  kafka-consume  Reads topics of the log.

transforms
  filter         Keeps what passes a test.

sinks
  file           Appends to a file.
";
    assert_eq!(list(&SPECS), expected);
}

#[test]
fn types_read_as_people_write_them() {
    for (key, kind) in [
        ("topics", "array of string"),
        ("start", "\"oldest\" or \"newest\""),
        ("wait", "duration"),
        ("size", "size"),
        ("batch", "table"),
        ("batch.records", "integer ≥ 1"),
        ("batch.bytes", "size"),
        ("routes", "array of table"),
        ("routes[].when", "string"),
        ("headers", "table of string"),
        ("named", "table of table"),
        ("named.<name>.to", "string"),
        ("lanes", "integer ≥ 1"),
        ("extra", "any value"),
    ] {
        assert_eq!(field(key).kind, kind, "{key}");
    }
}

#[test]
fn defaults_and_needs_are_told_where_they_are_set() {
    assert_eq!(field("start").default.as_deref(), Some("\"oldest\""));
    assert_eq!(field("batch").default, None, "its keys tell theirs");
    assert_eq!(field("batch.records").default.as_deref(), Some("512"));
    assert_eq!(field("batch.bytes").default.as_deref(), Some("\"1 MiB\""));
    assert_eq!((field("size").default, field("size").required), (None, false));
    assert!(field("topics").required && field("routes[].when").required);
    assert!(!field("routes[].to").required && !field("start").required);
}

#[test]
fn docs_come_from_the_field_or_its_type() {
    assert!(field("wait").docs.starts_with("Seconds to wait."));
    assert_eq!(field("start").docs, "Where to begin.");
    let choices = field("start").choices;
    assert_eq!(choices[0], ("\"oldest\"".to_owned(), "The first record there is.".to_owned()));
}

#[test]
fn a_page_tells_everything() {
    let page = page(&SPECS, "kafka-consume").unwrap();
    for expected in [
        "kafka-consume (source)\n\nReads topics of the log.\n",
        "takes   nothing\ngives   json\neffect  pure: nothing outside",
        "\n  topics  array of string, required\n",
        "\n  start  \"oldest\" or \"newest\", default \"oldest\"\n      Where to begin.\n",
        "\n        \"newest\": Only new ones.\n",
        "\nexample\n  [[pipeline.stage]]\n  kind = \"kafka-consume\"\n",
    ] {
        assert!(page.contains(expected), "{expected:?} in\n{page}");
    }
    assert!(page.lines().all(|line| line.chars().count() <= 80), "{page}");
}

#[test]
fn a_kind_with_two_roles_has_two_pages() {
    let both = page(&SPECS, "file").unwrap();
    assert!(both.contains("file (source)") && both.contains("file (sink)"), "{both}");
    assert!(both.contains("takes   json or delivery") && both.contains("params\n  none"), "{both}");
}

#[test]
fn a_typo_is_answered_with_the_kind_meant() {
    let error = page(&SPECS, "kafka-consum").unwrap_err();
    assert_eq!(error.to_string(), "no stage kind `kafka-consum`; did you mean `kafka-consume`?");
    assert_eq!(page(&SPECS, "xyz").unwrap_err().alike, None);
}

#[test]
fn the_reference_has_every_kind_and_sound_tables() {
    let reference = reference(&SPECS);
    for heading in ["## Sources", "### `kafka-consume` (source)", "### `file` (sink)", "## Keys every stage"]
    {
        assert_eq!(reference.matches(heading).count(), 1, "{heading}");
    }
    assert!(reference.contains("| `batch.records` | integer ≥ 1 | `512` |"), "{reference}");
    assert!(reference.contains("Where \\| to &lt;send>."), "{reference}");
    assert!(reference.contains("`\"<stage>.<output>\"`"), "code spans are left alone");
    let mut columns = 0;
    for line in reference.lines() {
        let bars = line.replace("\\|", "").matches('|').count();
        assert!(bars == 0 || columns == 0 || bars == columns, "{line}");
        columns = bars;
    }
}

#[derive(Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "lowercase")]
#[allow(dead_code, reason = "only its schema is looked at")]
enum Target {
    Local { path: String },
    Remote { url: String, path: String },
}

#[derive(Deserialize, JsonSchema)]
#[allow(dead_code, reason = "only its schema is looked at")]
struct Tree {
    children: Vec<Tree>,
}

#[test]
fn variants_are_merged_and_recursion_ends() {
    let all = fields(schemars::schema_for!(Target).as_value());
    let needs: Vec<_> = all.iter().map(|field| (field.key.as_str(), field.required)).collect();
    assert_eq!(needs, [("kind", true), ("path", true), ("url", false)]);
    assert_eq!(all[0].kind, "\"local\" or \"remote\"");
    assert!(fields(schemars::schema_for!(Tree).as_value()).len() < 10);
}
