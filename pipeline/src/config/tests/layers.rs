//! Files that include files, tests beside them, and the environment.

use std::fs;
use std::path::Path;

use super::kinds::{Connection, Connections, Edge};
use super::{env, loader, places};
use crate::config::{Diagnostics, Loaded};

fn pipeline(name: &str) -> String {
    format!("[[pipeline]]\nname = '{name}'\nstage = [{{ kind = 'generate' }}, {{ kind = 'file' }}]\n")
}

/// Loads `main.toml` from a folder with these files, from inside it as a user would.
fn load_files(files: &[(&str, &str)], variables: &[(&str, &str)]) -> Result<Loaded, Diagnostics> {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let strip = |path: &Path| path.strip_prefix(folder.path()).unwrap_or(path).to_owned();
    match loader().load(&folder.path().join("main.toml"), env(variables)) {
        Ok(mut loaded) => {
            loaded.files.iter_mut().for_each(|file| *file = strip(file));
            Ok(loaded)
        }
        Err(mut found) => {
            for found in &mut found.0 {
                if let crate::config::Origin::File { path, .. } = &mut found.origin {
                    *path = strip(path);
                }
            }
            Err(found)
        }
    }
}

fn names(loaded: &Loaded) -> Vec<&str> {
    loaded.topologies.iter().map(|topology| &*topology.name).collect()
}

#[test]
fn included_pipelines_come_after_those_of_the_file() {
    let main = format!(
        "include = ['flows/*.toml', 'flows/b.toml', 'none/*.toml']\n[edge]\nworkers = 3\n{}",
        pipeline("main")
    );
    let loaded = load_files(
        &[
            ("main.toml", &main),
            ("flows/b.toml", &pipeline("b")),
            ("flows/a.toml", &format!("edge.listen = 'a:1'\n{}", pipeline("a"))),
            ("flows/a.test.toml", "[[test]]\npipeline = 'a'\ninput = [1]\n"),
            ("flows/.hidden.toml", "broken ="),
        ],
        &[],
    )
    .unwrap_or_else(|found| panic!("{found}"));
    assert_eq!(names(&loaded), ["main", "a", "b"]);
    let edge: Edge = loaded.section("edge");
    assert_eq!((edge.workers, edge.listen.as_str()), (3, "a:1"));
    let files: Vec<_> = loaded.files.iter().map(|file| file.to_str().unwrap()).collect();
    assert_eq!(files, ["main.toml", "flows/a.toml", "flows/a.test.toml", "flows/b.toml"]);
    assert_eq!(loaded.tests.len(), 1);
    assert_eq!(loaded.tests[0].value["input"][0], 1);
    assert_eq!(places(&loaded.warnings), ["1:44 `none/*.toml` matches no file"]);
}

#[test]
fn mistakes_are_placed_in_the_file_they_are_in() {
    let found = load_files(
        &[
            (
                "main.toml",
                &format!("include = ['a.toml', 'gone.toml', 'broken.toml', 'b.toml']\n{}", pipeline("x")),
            ),
            ("a.toml", &pipeline("y").replace("generate", "generat")),
            ("a.test.toml", "[[test]]\npipelin = 'y'\n[edge]\n"),
            ("broken.toml", "a = 1\nb = = 2\n"),
            ("b.toml", &format!("{}{}", pipeline("z"), pipeline("x"))),
        ],
        &[],
    )
    .err()
    .unwrap();
    let shown: Vec<_> =
        found.iter().map(|found| found.to_string().lines().take(2).collect::<String>()).collect();
    assert!(
        shown[0].contains("cannot read") && shown[0].contains("--> main.toml:1:22 (include)"),
        "{}",
        shown[0]
    );
    assert_eq!(
        shown[1..],
        [
            "error: unknown stage kind `generat` --> a.toml:3:19 (pipeline.y.stage[0].kind)",
            "error: missing key `input` --> a.test.toml:1:1 (test[0].input)",
            "error: unknown key `pipelin` --> a.test.toml:2:1 (test[0].pipelin)",
            "error: `edge` does not belong in a file of tests --> a.test.toml:3:2 (edge)",
            "error: extra `=`, expected nothing --> broken.toml:2:5",
            "error: two pipelines are called `x` --> b.toml:5:8 (pipeline.x.name)",
        ]
    );
}

#[test]
fn an_include_that_leads_back_is_an_error_where_it_stands() {
    let files = [("main.toml", "include = ['a.toml']\n"), ("a.toml", "\ninclude = ['./main.toml']\n")];
    let found = load_files(&files, &[]).err().unwrap();
    let places = places(&found);
    assert_eq!(places.len(), 1);
    assert!(places[0].starts_with("2:12 ") && places[0].contains("includes itself"), "{places:?}");
    let found = load_files(&[("main.toml", "include = 'a.toml'\nedge.x = 1")], &[]).err().unwrap();
    assert_eq!(super::places(&found)[0], "1:11 `include` must be an array of file names");
    // A pattern that also matches its own file means the others.
    assert!(load_files(&[("main.toml", "include = ['*.toml']"), ("a.toml", "")], &[]).is_ok());
}

#[test]
fn a_missing_file_is_named() {
    let found = load_files(&[], &[]).err().unwrap().to_string();
    assert!(found.contains("--> main.toml:1:1"), "{found}");
}

#[test]
fn the_environment_wins_and_becomes_what_the_schema_expects() {
    let variables = [
        ("COURANT_EDGE__LISTEN", "8080"),
        ("COURANT_EDGE__WORKERS", "7"),
        ("COURANT_EDGE__COMPRESS", "true"),
        ("COURANT_EDGE__IDLE", "5s"),
        ("COURANT_EDGE__ORIGINS", "a, b"),
        ("COURANT_LOG", "debug"),
        ("HOME", "/"),
    ];
    let loaded = load_files(&[("main.toml", "edge.workers = 3\nedge.origins = ['c']\n")], &variables)
        .unwrap_or_else(|found| panic!("{found}"));
    let edge: Edge = loaded.section("edge");
    assert_eq!((edge.listen.as_str(), edge.workers, edge.compress), ("8080", 7, true));
    assert_eq!(edge.origins, ["a", "b"]);
    assert!(loaded.warnings.is_empty(), "{}", loaded.warnings);
    let listed = load_files(&[("main.toml", "")], &[("COURANT_EDGE__ORIGINS", "['x,y']")])
        .unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(listed.section::<Edge>("edge").origins, ["x,y"]);
}

#[test]
fn a_later_layer_may_choose_another_alternative() {
    let file = [("main.toml", "[connections.store]\nkind = 'embedded'\npath = 'here'\n")];
    let variables =
        [("COURANT_CONNECTIONS__STORE__KIND", "redis"), ("COURANT_CONNECTIONS__STORE__URL", "redis://cache")];
    let loaded = load_files(&file, &variables).unwrap_or_else(|found| panic!("{found}"));
    let redis = Connection::Redis { url: "redis://cache".into() };
    assert_eq!(loaded.section::<Connections>("connections").store, redis);
    let warnings = places(&loaded.warnings);
    assert_eq!(warnings, ["3:1 `path` is left out, because of COURANT_CONNECTIONS__STORE__KIND"]);
}

#[test]
fn mistakes_in_the_environment_name_the_variable() {
    let variables = [
        ("COURANT_EDGE__WORKERS", "many"),
        ("COURANT_EDGE__LISTN", "x"),
        ("COURANT_EDGE__SESSION_SECRET__X", "hunter2"),
        ("COURANT_EGDE__LISTEN", "x"),
        ("COURANT_PIPELINE__0__NAME", "x"),
        ("COURANT_EDGE__", "x"),
    ];
    let found = load_files(&[("main.toml", "")], &variables).err().unwrap();
    assert_eq!(
        places(&found),
        [
            "COURANT_EDGE__ `COURANT_EDGE__` is not a name of a setting",
            "COURANT_EDGE__LISTN unknown key `listn`",
            "COURANT_EDGE__SESSION_SECRET__X `session_secret` must be a string, not a table",
            "COURANT_EDGE__WORKERS `workers` must be a whole number, not a string",
            "COURANT_EGDE__LISTEN unknown table `egde`",
            "COURANT_PIPELINE__0__NAME `pipeline` cannot be set by the environment",
        ]
    );
    let text = found.to_string();
    assert!(text.contains("--> environment variable COURANT_EGDE__LISTEN (egde.listen)"), "{text}");
    assert!(text.contains("did you mean `COURANT_EDGE__LISTEN`?"), "{text}");
    assert_eq!(
        text.matches("COURANT_EDGE__LISTEN`").count(),
        2,
        "the misspelt key has a suggestion too: {text}"
    );
}

#[test]
fn a_variable_that_lacks_an_underscore_is_pointed_out() {
    let variables =
        [("COURANT_EDGE_SESSION_SECRET", "x"), ("COURANT_EDGE_COLOUR", "x"), ("COURANT_EDGE", "x")];
    let loaded = load_files(&[("main.toml", "")], &variables).unwrap_or_else(|found| panic!("{found}"));
    assert_eq!(
        places(&loaded.warnings),
        ["COURANT_EDGE_SESSION_SECRET `COURANT_EDGE_SESSION_SECRET` sets nothing"]
    );
    assert!(loaded.warnings.to_string().contains("`COURANT_EDGE__SESSION_SECRET`"));
}
