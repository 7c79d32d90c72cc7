//! One file with every kind of mistake: all are reported, each at its place.

use super::{NO_ENV, loader, refused};

pub(super) const TEXT: &str = r#"[edge]
listen = 8080
idle = "soon"
wrokers = 4

[[pipeline]]
name = "ingest"
plane = "durabilty"
[[pipeline.stage]]
kind = "generate"
params = { start_at = "latest" }
[[pipeline.stage]]
kind = "filtre"
[[pipeline.stage]]
kind = "publish"

[[pipeline]]
name = "fanout"
plane = "fanout"
[[pipeline.stage]]
kind = "generate"
[[pipeline.stage]]
kind = "filter"
lanes = 0
params = { expr = '.a == 1 ! .b' }
[[pipeline.stage]]
kind = "persist"
input = "generat"
[[pipeline.stage]]
kind = "deliver"
input = "filter"

[[pipeline]]
name = "ingest"
[[pipeline.stage]]
kind = "generate"
[[pipeline.stage]]
kind = "deliver"
"#;

const EXPECTED: &str = r#"error: `listen` must be a string, not a whole number
 --> pipelines.toml:2:10 (edge.listen)
  |
2 | listen = 8080
  |          ^^^^

error: `soon` is not a length of time
 --> pipelines.toml:3:8 (edge.idle)
  |
3 | idle = "soon"
  |        ^^^^^^
  = help: write one like "250ms" or "1m 30s"

error: unknown key `wrokers`
 --> pipelines.toml:4:1 (edge.wrokers)
  |
4 | wrokers = 4
  | ^^^^^^^
  = help: did you mean `workers`?

error: `durabilty` is not a value of `plane`
 --> pipelines.toml:8:9 (pipeline.ingest.plane)
  |
8 | plane = "durabilty"
  |         ^^^^^^^^^^^
  = help: did you mean `durability`?

error: `latest` is not a value of `start_at`
  --> pipelines.toml:11:23 (pipeline.ingest.stage[0].params.start_at)
   |
11 | params = { start_at = "latest" }
   |                       ^^^^^^^^
   = help: expected `oldest` or `newest`

error: unknown stage kind `filtre`
  --> pipelines.toml:13:8 (pipeline.ingest.stage[1].kind)
   |
13 | kind = "filtre"
   |        ^^^^^^^^
   = help: did you mean `filter`?

error: missing key `topic`
  --> pipelines.toml:14:1 (pipeline.ingest.stage[2].params.topic)
   |
14 | [[pipeline.stage]]
   | ^^^^^^^^^^^^^^^^^^
   = help: `topic`: The topic it writes

error: `lanes` must be between 1 and 65535
  --> pipelines.toml:24:9 (pipeline.fanout.stage[1].lanes)
   |
24 | lanes = 0
   |         ^

error: unexpected `!`
  --> pipelines.toml:25:28 (pipeline.fanout.stage[1].params.expr)
   |
25 | params = { expr = '.a == 1 ! .b' }
   |                            ^

error: pipeline `fanout` is on the fanout plane, but its stage `persist` writes the store (table `messages`)
  --> pipelines.toml:27:8 (pipeline.fanout.stage[2])
   |
27 | kind = "persist"
   |        ^^^^^^^^^
   = help: only the durability plane writes the store: move the stage to a pipeline with `plane = "durability"` (rule A1: one plane writes the store)

error: no stage is called `generat`
  --> pipelines.toml:28:9 (pipeline.fanout.stage[2].input)
   |
28 | input = "generat"
   |         ^^^^^^^^^
   = help: did you mean `generate`?

error: two pipelines are called `ingest`
  --> pipelines.toml:34:8 (pipeline.ingest.name)
   |
34 | name = "ingest"
   |        ^^^^^^^^
   = help: the other is at pipelines.toml:7:8

error: `deliver` takes `delivery`, but `generate` gives `message-event`
  --> pipelines.toml:38:8 (pipeline.ingest.stage[1])
   |
38 | kind = "deliver"
   |        ^^^^^^^^^
   = help: `resolve` makes `delivery` of `message-event`
"#;

#[test]
fn every_mistake_is_reported_at_its_place() {
    assert_eq!(refused(TEXT), EXPECTED);
}

#[test]
fn editors_get_the_same_as_json() {
    let found = loader().load_str("pipelines.toml", TEXT, NO_ENV).err().unwrap();
    let json = serde_json::to_value(&found).unwrap();
    assert_eq!(json.as_array().unwrap().len(), 13);
    assert_eq!(json[0]["origin"]["path"], "pipelines.toml");
    assert_eq!(json[3]["help"], "did you mean `durability`?");
    assert_eq!(json[7].get("help"), None);
}
