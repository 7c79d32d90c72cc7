//! Each rule of authority with the message it gives, and the nearest thing that is allowed.

use super::{loaded, refused};
use crate::config::Plane;
use crate::config::authority::{Declared, violations};
use crate::spec::{Access, Level, Mode};

#[test]
fn a1_only_the_durability_plane_writes_the_store() {
    let text = "\
[[pipeline]]
name = 'fanout'
plane = 'fanout'
stage = [
  { kind = 'generate' },
  { kind = 'persist' },
  { kind = 'file' },
]
";
    let expected = "\
error: pipeline `fanout` is on the fanout plane, but its stage `persist` writes the store (table `messages`)
 --> pipelines.toml:6:12 (pipeline.fanout.stage[1])
  |
6 |   { kind = 'persist' },
  |            ^^^^^^^^^
  = help: only the durability plane writes the store: move the stage to a pipeline with `plane = \"durability\"` \
(rule A1: one plane writes the store)
";
    assert_eq!(refused(text), expected);
    loaded(&text.replace("plane = 'fanout'", "plane = 'durability'"));
}

#[test]
fn a2_an_event_is_published_after_the_persist() {
    let text = "\
[[pipeline]]
name = 'ingest'
plane = 'durability'
stage = [
  { kind = 'generate' },
  { kind = 'publish', params = { topic = 'messages.persisted' } },
  { kind = 'persist', input = 'generate' },
  { kind = 'file' },
]
";
    let expected = "\
error: stage `publish` writes the log (topic `messages.persisted`) before anything is stored
 --> pipelines.toml:6:12 (pipeline.ingest.stage[1])
  |
6 |   { kind = 'publish', params = { topic = 'messages.persisted' } },
  |            ^^^^^^^^^
  = help: an event may only tell of what is durable: put the stage behind the one that writes the store \
(rule A2: persist before publish)
";
    assert_eq!(refused(text), expected);
    loaded(
        "\
[[pipeline]]
name = 'ingest'
plane = 'durability'
stage = [
  { kind = 'generate' },
  { kind = 'persist' },
  { kind = 'publish', params = { topic = 'messages.persisted' } },
]
",
    );
}

#[test]
fn a3_a_cache_is_filled_from_the_store() {
    let text = "\
[[pipeline]]
name = 'warm'
stage = [
  { kind = 'generate' },
  { kind = 'cache-fill' },
]
";
    let expected = "\
error: stage `cache-fill` fills the cache (keys `chat_members`) from the records it is given, not from the store
 --> pipelines.toml:5:12 (pipeline.warm.stage[1])
  |
5 |   { kind = 'cache-fill' },
  |            ^^^^^^^^^^^^
  = help: events come late, twice and out of order: drop the cached value on an event and fill it from a read \
of the store (rule A3: caches are filled from the store)
";
    assert_eq!(refused(text), expected);
    loaded(&text.replace("'cache-fill' }", "'cache-fill', params = { read_store = true } }"));
}

#[test]
fn a4_a_replay_reaches_nobody() {
    let text = "\
[[pipeline]]
name = 'again'
plane = 'replay'
stage = [
  { kind = 'generate' },
  { kind = 'resolve' },
  { kind = 'deliver' },
]
";
    let expected = "\
error: pipeline `again` runs history again, and its stage `deliver` has effects outside
 --> pipelines.toml:7:12 (pipeline.again.stage[2])
  |
7 |   { kind = 'deliver' },
  |            ^^^^^^^^^
  = help: replay into something that can be built again, such as an index or a table of its own \
(rule A4: replay stays in the house)
";
    assert_eq!(refused(text), expected);
    loaded(&text.replace("'replay'", "'fanout'"));
}

#[test]
fn a5_the_connection_plane_owns_nothing() {
    let text = "\
[[pipeline]]
name = 'socket'
plane = 'connection'
stage = [
  { kind = 'generate' },
  { kind = 'publish', params = { topic = 'typing' } },
]
";
    let expected = "\
error: pipeline `socket` is on the connection plane, but its stage `publish` writes the log (topic `typing`)
 --> pipelines.toml:6:12 (pipeline.socket.stage[1])
  |
6 |   { kind = 'publish', params = { topic = 'typing' } },
  |            ^^^^^^^^^
  = help: hand the command to a pipeline on the durability plane (rule A5: the connection plane owns nothing)
";
    assert_eq!(refused(text), expected);
    let other = text.replace("'publish', params = { topic = 'typing' }", "'persist'");
    assert!(
        refused(&other).contains("its stage `persist` writes the store"),
        "the store is out of reach as well"
    );
    loaded(&text.replace("'connection'", "'derived'"));
}

#[test]
fn a6_a_table_has_two_followers() {
    let text = "\
[[pipeline]]
name = 'deliver'
stage = [{ kind = 'follow', params = { table = 'messages', group = 'one' } }, { kind = 'file' }]
[[pipeline]]
name = 'deliver-more'
stage = [{ kind = 'follow', params = { table = 'messages', group = 'one' } }, { kind = 'file' }]
[[pipeline]]
name = 'publish'
stage = [{ kind = 'follow', params = { table = 'messages', group = 'two' } }, { kind = 'file' }]
[[pipeline]]
name = 'search'
stage = [{ kind = 'follow', params = { table = 'messages', group = 'three' } }, { kind = 'file' }]
";
    let expected = "\
error: the changes of the table `messages` are followed by the pipelines `deliver` and `publish` already
  --> pipelines.toml:12:19 (pipeline.search.stage[0])
   |
12 | stage = [{ kind = 'follow', params = { table = 'messages', group = 'three' } }, { kind = 'file' }]
   |                   ^^^^^^^^
   = help: a shard of a change stream serves two readers at a time: consume the log instead, where one of them \
publishes what changed (rule A6: two followers of a table)
";
    assert_eq!(refused(text), expected);
    loaded(&text.replace("'three'", "'two'"));
    loaded(&text.replace("'messages', group = 'three'", "'chats', group = 'three'"));
}

#[test]
fn a_stage_that_cannot_be_built_is_not_accused_of_anything() {
    let found = refused(
        "\
[[pipeline]]
name = 'ingest'
plane = 'durability'
stage = [
  { kind = 'generate' },
  { kind = 'persist', params = { tabel = 'x' } },
  { kind = 'publish', params = { topic = 'messages.persisted' } },
]
",
    );
    assert!(found.contains("unknown key `tabel`"), "{found}");
    assert!(!found.contains("before anything is stored"), "{found}");
}

#[test]
fn a_stage_of_unknown_access_may_have_stored_the_record() {
    let publish = [Access { level: Level::Log, mode: Mode::Write, name: "t".to_owned() }];
    let stages = |before| {
        let stage = |access, input| Declared { stage: "s", effect: None, access, input };
        [stage(before, None), stage(Some(&publish[..]), Some(0))]
    };
    assert!(violations("p", Plane::Durability, &stages(None)).is_empty());
    assert_eq!(violations("p", Plane::Durability, &stages(Some(&[]))).len(), 1);
}
