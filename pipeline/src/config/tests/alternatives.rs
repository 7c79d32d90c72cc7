//! Enums as schemars writes them: each mistake is explained in terms of what was probably meant.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{NO_ENV, env, loader, places};
use crate::config::{Diagnostics, Section};

#[derive(Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct Shapes {
    mode: Option<Mode>,
    when: Option<When>,
    names: Option<OneOrMany>,
    pair: Option<(u8, String)>,
    server: Option<Server>,
    #[serde(flatten)]
    more: More,
}

#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
enum Mode {
    /// Documented, so schemars writes a constant each.
    Fast,
    Slow,
}

#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
enum When {
    Never,
    Every(u32),
    At { hour: u8 },
}

#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(untagged)]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

/// A tag beside a struct of its own.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
enum Server {
    Kafka(Kafka),
    Memory,
}

#[derive(Debug, Deserialize, Serialize, JsonSchema)]
struct Kafka {
    brokers: Vec<String>,
}

#[derive(Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
struct More {
    depth: u8,
}

fn check(text: &str) -> Vec<String> {
    let text = format!("[shapes]\n{text}");
    let loaded = loader().sections(&[Section::of::<Shapes>("shapes")]).load_str("x.toml", &text, NO_ENV);
    loaded.map_or_else(|found| places(&found), |_| Vec::new())
}

#[test]
fn what_fits_is_accepted() {
    for text in [
        "mode = 'fast'",
        "when = 'never'",
        "when = { every = 3 }",
        "when = { at = { hour = 3 } }",
        "names = 'a'",
        "names = ['a', 'b']",
        "pair = [1, 'x']",
        "server = { kind = 'kafka', brokers = [] }",
        "server = { kind = 'memory' }",
        "depth = 3",
    ] {
        assert_eq!(check(text), [""; 0], "{text}");
    }
}

#[test]
fn what_does_not_is_explained() {
    assert_eq!(check("mode = 'fats'"), ["2:8 `fats` is not a value of `mode`"]);
    assert_eq!(check("mode = 1"), ["2:8 `mode` must be a string, not a whole number"]);
    assert_eq!(check("when = 'nevr'"), ["2:8 `nevr` is not a value of `when`"]);
    assert_eq!(check("when = { every = 'x' }"), ["2:18 `every` must be a whole number, not a string"]);
    assert_eq!(check("when = { at = {} }"), ["2:15 missing key `hour`"]);
    assert_eq!(check("when = { evry = 1 }"), ["2:8 `when` must have one of the keys `every` or `at`"]);
    assert_eq!(check("when = 3"), ["2:8 `when` must be a string or a table, not a whole number"]);
    assert_eq!(check("names = [1]"), ["2:10 `names[0]` must be a string, not a whole number"]);
    assert_eq!(check("names = 1"), ["2:9 `names` must be a string or an array, not a whole number"]);
    assert_eq!(check("pair = [1]"), ["2:8 `pair` must have 2 elements, not 1"]);
    assert_eq!(check("pair = [300, 4]").len(), 2);
    assert_eq!(check("server = { kind = 'kafka' }"), ["2:10 missing key `brokers`"]);
    assert_eq!(check("server = { brokers = [] }"), ["2:10 missing key `kind`"]);
    assert_eq!(check("depth = 'x'\ndeep = 1").len(), 2);
}

#[test]
fn the_environment_can_say_the_same() {
    let load = |name: &str, value: &str| -> Result<Shapes, Diagnostics> {
        let loader = loader().sections(&[Section::of::<Shapes>("shapes")]);
        loader.load_str("x.toml", "", env(&[(name, value)])).map(|loaded| loaded.section("shapes"))
    };
    assert!(matches!(load("COURANT_SHAPES__MODE", "slow").map(|shapes| shapes.mode), Ok(Some(Mode::Slow))));
    assert!(matches!(load("COURANT_SHAPES__PAIR", "[1, 'x']").map(|shapes| shapes.pair), Ok(Some((1, _)))));
    assert!(matches!(load("COURANT_SHAPES__DEPTH", "7").map(|shapes| shapes.more.depth), Ok(7)));
    assert!(matches!(
        load("COURANT_SHAPES__WHEN__EVERY", "7").map(|shapes| shapes.when),
        Ok(Some(When::Every(7)))
    ));
}
