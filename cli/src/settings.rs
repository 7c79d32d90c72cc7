//! The tables of `pipelines.toml` that belong to the process as a whole, and the loader that knows them all.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use courant_connectors::connections::Connections;
use courant_edge::EdgeConfig;
use courant_edge::auth::AuthConfig;
use courant_pipeline::Services;
use courant_pipeline::config::{Loaded, Loader, Section, Style};
use courant_pipeline::units::Span;
use courant_stages::host::DeadLetterStore;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::exit::Exit;
use crate::testing::TestEntry;

/// `[runtime]`: where the process keeps its things and how it ends.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RuntimeConfig {
    /// The folder for positions, dead letters, derived stores and the admin socket. One process per folder.
    pub data_dir: PathBuf,
    /// How long a pipeline may take to finish what is under way when it is stopped or reloaded. What is not done
    /// by then goes back to its source.
    pub drain_deadline: Span,
    /// How often to look whether the configuration's files have changed; a change counts once two looks in a row
    /// find the same. Zero: only on SIGHUP or `courant reload`.
    pub watch: Span,
    /// The admin socket, if it should not be in the data folder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admin_socket: Option<PathBuf>,
}

impl Default for RuntimeConfig {
    fn default() -> Self {
        Self {
            data_dir: PathBuf::from("data"),
            drain_deadline: Span::secs(30),
            watch: Span::secs(1),
            admin_socket: None,
        }
    }
}

impl RuntimeConfig {
    pub fn admin_socket(&self) -> PathBuf {
        self.admin_socket.clone().unwrap_or_else(|| self.data_dir.join("admin.sock"))
    }

    pub fn dead_letters(&self) -> PathBuf {
        self.data_dir.join("dead-letters")
    }

    pub fn derived(&self) -> PathBuf {
        self.data_dir.join("derived")
    }

    pub fn positions(&self) -> PathBuf {
        self.data_dir.join("positions")
    }
}

/// `[logging]`: what the process writes to standard error.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LoggingConfig {
    /// `error`, `warn`, `info`, `debug` or `trace`, also by module: `"info,courant_pipeline=debug"`.
    pub level: String,
    /// How a line looks.
    pub format: LogFormat,
}

impl Default for LoggingConfig {
    fn default() -> Self {
        Self { level: "info".to_owned(), format: LogFormat::Pretty }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum LogFormat {
    /// For people.
    Pretty,
    /// One JSON object a line, for machines.
    Json,
}

/// Top-level tables beside `[[pipeline]]`.
const SECTIONS: [Section; 5] = [
    Section::of::<AuthConfig>("auth"),
    Section::of::<Connections>("connections"),
    Section::of::<EdgeConfig>("edge"),
    Section::of::<RuntimeConfig>("runtime"),
    Section::of::<LoggingConfig>("logging"),
];

/// Everything a file may say. Checking touches nothing: the stores it is given are not opened.
pub fn loader() -> Loader {
    loader_without_tests().tests(|| schemars::schema_for!(TestEntry))
}

fn loader_without_tests() -> Loader {
    let unopened = Arc::new(DeadLetterStore::unopened(RuntimeConfig::default().dead_letters()));
    Loader::new(courant_stages::registry(), Services::default().with(unopened)).sections(&SECTIONS)
}

/// The process's variables. What is not UTF-8 is shown with replacement characters, and refused where it matters:
/// `std::env::vars` would panic, whoever's variable it is.
pub fn environment() -> impl Iterator<Item = (String, String)> {
    let lossy = |text: std::ffi::OsString| text.to_string_lossy().into_owned();
    std::env::vars_os().map(move |(name, value)| (lossy(name), lossy(value)))
}

/// Loads the file, printing warnings; if it is not in order, prints everything that is wrong with it.
pub fn load(file: &Path) -> Result<Loaded, Exit> {
    let style = style();
    match loader().load(file, environment()) {
        Ok(loaded) => {
            if !loaded.warnings.is_empty() {
                eprintln!("{}", loaded.warnings.render(style));
            }
            Ok(loaded)
        }
        Err(wrong) => {
            eprintln!("{}\n{}", wrong.render(style), summary(wrong.errors(), wrong.warnings()));
            Err(Exit::BadConfiguration)
        }
    }
}

/// `3 errors, 1 warning`.
pub fn summary(errors: usize, warnings: usize) -> String {
    let count = |n: usize, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
    match warnings {
        0 => count(errors, "error"),
        _ => format!("{}, {}", count(errors, "error"), count(warnings, "warning")),
    }
}

/// Colours for people, plain text for pipes.
pub fn style() -> Style {
    use std::io::IsTerminal as _;
    if std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none() {
        Style::Ansi
    } else {
        Style::Plain
    }
}

/// The file that is meant when none is named.
pub const DEFAULT_FILE: &str = "pipelines.toml";

/// Whether there is a file. In a folder without one the defaults hold. One that was named must be there: the defaults
/// would be about another folder than the one that is meant.
pub fn is_there(file: &Path) -> Result<bool, Exit> {
    let is_there = file.exists();
    if !is_there && file != Path::new(DEFAULT_FILE) {
        eprintln!(
            "error: there is no `{}`; look at --config, or at COURANT_CONFIG if that names it",
            file.display()
        );
        return Err(Exit::BadConfiguration);
    }
    Ok(is_there)
}

/// The `[runtime]` table, for commands that talk to a running process. Such a process goes on when its file is broken,
/// and must stay reachable: if the file as a whole is wrong, its `[runtime]` table has to do, or else the defaults. Tests
/// are not looked at.
pub fn runtime_config(file: &Path) -> Result<RuntimeConfig, Exit> {
    let is_there = is_there(file)?;
    let loader = loader_without_tests();
    let wrong = match loader.load(file, environment()) {
        Ok(loaded) => return Ok(loaded.section("runtime")),
        Err(wrong) => wrong,
    };
    let table = runtime_table(file).unwrap_or_default();
    match loader.load_str(&file.to_string_lossy(), &table, environment()) {
        Ok(loaded) => {
            let runtime: RuntimeConfig = loaded.section("runtime");
            if is_there {
                eprintln!(
                    "note: `{}` is wrong ({}); `courant check` shows how. Its data folder is taken to be `{}`, \
                     and its admin socket `{}`",
                    file.display(),
                    summary(wrong.errors(), 0),
                    runtime.data_dir.display(),
                    runtime.admin_socket().display()
                );
            }
            Ok(runtime)
        }
        Err(wrong) => {
            eprintln!("{}", wrong.render(style()));
            Err(Exit::BadConfiguration)
        }
    }
}

/// A file's `[runtime]` table alone, if that much can be read.
fn runtime_table(file: &Path) -> Option<String> {
    let document: toml_edit::DocumentMut = std::fs::read_to_string(file).ok()?.parse().ok()?;
    let mut alone = toml_edit::DocumentMut::new();
    alone.insert("runtime", document.get("runtime")?.clone());
    Some(alone.to_string())
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt as _;
    use std::process::Command;

    use super::*;

    use courant_connectors::connections::{EmbeddedConnection, LiveConnection, StoreConnection};

    fn load(text: &str, variables: &[(&str, &str)]) -> Result<Connections, String> {
        let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        match loader().load_str("x.toml", text, variables) {
            Ok(loaded) => Ok(loaded.section("connections")),
            Err(wrong) => Err(wrong.render(Style::Plain)),
        }
    }

    #[test]
    fn connections_come_from_defaults_file_and_environment() {
        assert_eq!(load("", &[]).unwrap(), Connections::default());
        let file = "[connections.live]\nkind = 'redis'\nurl = 'redis://a'\n";
        let loaded = load(file, &[("COURANT_CONNECTIONS__STORE__PATH", "elsewhere")]).unwrap();
        let elsewhere = EmbeddedConnection { path: "elsewhere".into() };
        assert_eq!(loaded.store, StoreConnection::Embedded(elsewhere));
        assert!(
            matches!(loaded.live, LiveConnection::Redis(redis) if redis.url.as_deref() == Some("redis://a"))
        );
        assert_eq!(loaded.log, Connections::default().log);

        let server = [
            ("COURANT_CONNECTIONS__STORE__KIND", "dynamodb"),
            ("COURANT_CONNECTIONS__STORE__TABLE_PREFIX", "dev_"),
        ];
        let loaded = load("", &server).unwrap();
        assert!(matches!(loaded.store, StoreConnection::DynamoDb(store) if store.table_prefix == "dev_"));
    }

    #[test]
    fn a_mistake_in_a_connection_is_shown_with_what_was_meant() {
        let wrong = |text: &str| load(text, &[]).unwrap_err();
        let prefix = wrong("[connections.store]\nkind = 'dynamodb'\ntable_prefx = 'dev_'\n");
        assert!(prefix.contains("x.toml:3:1") && prefix.contains("did you mean `table_prefix`?"), "{prefix}");
        let kind = wrong("[connections.log]\nkind = 'kafca'\n");
        assert!(kind.contains("`kafca` is not a value of `kind`") && kind.contains("kafka"), "{kind}");
        let missing = wrong("[connections.log]\nkind = 'kafka'\n");
        assert!(missing.contains("missing key `brokers`"), "{missing}");
        let other = wrong("[connections.live]\nkind = 'embedded'\nurl = 'redis://u:hunter2@h'\n");
        assert!(other.contains("unknown key `url`") && !other.contains("hunter2"), "{other}");
    }

    #[test]
    fn the_schema_knows_connections() {
        let schema = serde_json::to_string(loader().schema().as_value()).unwrap();
        for told in ["connections", "table_prefix", "eu-central-1", "One process per folder"] {
            assert!(schema.contains(told), "{told}");
        }
    }

    /// Runs itself again with such variables, since a process should not change its own.
    #[test]
    fn variables_that_are_not_utf8_do_no_harm() {
        if std::env::var_os("AGAIN").is_some() {
            let odd: Vec<_> = environment().filter(|(name, _)| name.starts_with("ODD_")).collect();
            assert_eq!(odd, [("ODD_\u{fffd}".to_owned(), "\u{fffd}".to_owned())]);
            return;
        }
        let again = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "settings::tests::variables_that_are_not_utf8_do_no_harm"])
            .env("AGAIN", "1")
            .env(OsStr::from_bytes(b"ODD_\xff"), OsStr::from_bytes(b"\xff"))
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&again.stdout).into_owned();
        assert!(again.status.success() && said.contains("1 passed"), "{said}");
    }
}
