//! Values against schemas: positions, types, alternatives, secrets.

use super::kinds::{Connection, Connections, Edge};
use super::{NO_ENV, env, loaded, loader, places, refused, refused_at};
use crate::config::{Section, reads_as};
use crate::spec::Problem;
use crate::units::Span;

#[test]
fn defaults_fill_what_the_file_leaves_out() {
    let loaded = loaded("[edge]\nlisten = 'x:1'\norigins = ['a']\n");
    let edge: Edge = loaded.section("edge");
    assert_eq!(edge, Edge { listen: "x:1".into(), origins: vec!["a".into()], ..Edge::default() });
    assert_eq!(loaded.section::<Connections>("connections"), Connections::default());
}

#[test]
fn what_a_kind_prefers_stands_for_what_the_file_leaves_out() {
    let policy = |more: &str| {
        let text = format!(
            "[[pipeline]]\nname = 'p'\nstage = [{{ kind = 'generate' }}, {{ kind = 'gather'{more} }}]"
        );
        let policy = loaded(&text).topologies[0].stages[1].policy.clone();
        let batch = policy.batch;
        (policy.lanes, policy.buffer, (batch.records.get(), batch.bytes.0, batch.wait))
    };
    assert_eq!(policy(""), (Some(1), Some(90), (9, 99, Span::millis(999))));
    let some = policy(", lanes = 3, batch = { records = 512, wait = '0s' }");
    assert_eq!(some, (Some(3), Some(90), (512, 99, Span::default())), "also where it says the usual");
    assert_eq!(
        policy(", buffer = 7, batch = { bytes = '1 KiB' }"),
        (Some(1), Some(7), (9, 1024, Span::millis(999)))
    );
}

#[test]
fn the_same_mistake_is_found_in_every_way_to_write_it() {
    assert_eq!(refused_at("[edge]\nworkers = 'x'"), ["2:11 `workers` must be a whole number, not a string"]);
    assert_eq!(refused_at("edge.workers = 'x'"), ["1:16 `workers` must be a whole number, not a string"]);
    assert_eq!(
        refused_at("edge = { workers = 'x' }"),
        ["1:20 `workers` must be a whole number, not a string"]
    );
    assert_eq!(
        refused_at("\"edge\" . 'workers' = 'x'"),
        ["1:22 `workers` must be a whole number, not a string"]
    );
    assert_eq!(refused_at("edge = 3"), ["1:8 `edge` must be a table, not a whole number"]);
    assert_eq!(refused_at("[[edge]]"), ["1:1 `edge` must be a table, not an array"]);
    assert_eq!(refused_at("[pipeline]\nname='x'"), ["1:1 `pipeline` must be an array of tables"]);
}

#[test]
fn several_mistakes_in_one_table_are_all_found() {
    let text = "[edge]\nworkers = -1\ncompress = 'yes'\norigins = ['a', 2, true]\nidle = 5\nlissten = 'x'\n";
    assert_eq!(
        refused_at(text),
        [
            "2:11 `workers` must be between 0 and 65535",
            "3:12 `compress` must be true or false, not a string",
            "4:17 `origins[1]` must be a string, not a whole number",
            "4:20 `origins[2]` must be a string, not true or false",
            "5:8 `idle` must be a length of time such as \"250ms\", not a whole number",
            "6:1 unknown key `lissten`",
        ]
    );
    assert_eq!(
        refused_at("edge.workers = inf"),
        ["1:16 `workers` must be a whole number, not infinite or nan"]
    );
}

#[test]
fn a_tagged_table_is_judged_by_its_tag() {
    let with = |table: &str| format!("[connections]\nstore = {table}\n");
    assert_eq!(refused_at(&with("{ kind = 'reddis' }")), ["2:18 `reddis` is not a value of `kind`"]);
    assert_eq!(refused_at(&with("{ kind = 'redis' }")), ["2:9 missing key `url`"]);
    assert_eq!(refused_at(&with("{ kind = 'redis', url = 'u', file = 'd' }")), ["2:38 unknown key `file`"]);
    let redis = loaded(&with("{ kind = 'redis', url = 'u' }")).section::<Connections>("connections");
    assert_eq!(redis.store, Connection::Redis { url: "u".into() });
}

#[test]
fn a_misspelt_key_is_one_mistake() {
    let text = "\
[[pipeline]]
name = 'p'
stage = [{ kind = 'generate' }, { kind = 'publish', params = { topc = 't' } }]
";
    assert_eq!(refused_at(text), ["3:64 unknown key `topc`"]);
    assert!(refused(text).contains("= help: did you mean `topic`?"));
}

#[test]
fn what_only_the_owner_of_a_table_knows_has_a_place_too() {
    #[derive(Default, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
    struct Ports {
        ports: Vec<u16>,
    }
    let section = Section::of::<Ports>("net").check(|table| {
        reads_as::<Ports>(table)?;
        Err(vec![Problem::new("ports[1]", "taken"), Problem::new("tls.cert", "needed for this")])
    });
    let found =
        loader().sections(&[section]).load_str("x.toml", "[net]\nports = [1, 2]\n", NO_ENV).err().unwrap();
    assert_eq!(places(&found), ["1:1 needed for this", "2:13 taken"]);
    assert_eq!(found.0[0].path, "net.tls.cert");
    assert_eq!(found.0[1].path, "net.ports[1]");
}

#[test]
fn a_table_that_is_required_and_nowhere_is_missing_in_the_file() {
    let section = Section::without_defaults::<Connections>("other");
    let found = loader().sections(&[section]).load_str("x.toml", "[edge]\n", NO_ENV).err().unwrap();
    assert_eq!(
        found.to_string(),
        "\
error: missing key `store`
 --> x.toml:1:1 (other.store)
  = help: `store`: A server or its embedded twin
"
    );
}

#[test]
fn secrets_are_never_shown() {
    let found = refused(
        "\
[edge]
session_secret = ['hunter2']
listen = 1
[[pipeline]]
name = 'p'
[[pipeline.stage]]
kind = 'generate'
[[pipeline.stage]]
kind = 'webhook'
params = { url = 'http://u:hunter2@h/', secret = 'hunter2' }
",
    );
    assert!(!found.contains("hunter2"), "{found}");
    assert!(found.contains("`***` is too short for http://***@h/"), "{found}");
}

#[test]
fn a_secret_of_the_wrong_form_is_not_repeated() {
    #[derive(Default, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
    struct Auth {
        password: Span,
    }
    let loader = loader().sections(&[Section::of::<Auth>("auth")]);
    let found = loader.load_str("x.toml", "auth.password = 'hunter2'", NO_ENV).err().unwrap();
    assert_eq!(places(&found), ["1:17 the value is not a length of time"]);
    let found = loader.load_str("x.toml", "", env(&[("COURANT_AUTH__PASSWORD", "hunter2")])).err().unwrap();
    assert!(!found.to_string().contains("hunter2"), "{found}");
}

#[test]
fn an_error_inside_a_multi_line_string_is_in_its_line() {
    let text = "\
[[pipeline]]
name = 'p'
[[pipeline.stage]]
kind = 'generate'
[[pipeline.stage]]
kind = 'filter'
params.expr = '''
.a
  | .б ! .c
'''
[[pipeline.stage]]
kind = 'file'
";
    assert_eq!(refused_at(text), ["9:8 unexpected `!`"]);
    assert_eq!(refused_at(&text.replace('\n', "\r\n")), ["9:8 unexpected `!`"]);
    let basic = text.replace("'''\n.a\n  | .б ! .c\n'''", r#""\t\u00e9 \" ! ""#);
    assert_eq!(refused_at(&basic), ["7:28 unexpected `!`"]);
}
