//! Loads a configuration: files and environment in, checked topologies and sections out.
//!
//! Loading reads files and does nothing else, so `courant check` works on a laptop and in CI. Either
//! everything is in order or nothing is loaded; there is no half of a configuration.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use schemars::Schema;
use serde::de::DeserializeOwned;
use serde_json::Value as Json;

use super::diagnostic::{Diagnostics, Origin};
use super::draft::Check;
use super::entry::PipelineEntry;
use super::env::Environment;
use super::reader::{Reader, Tests};
use super::report::Report;
use super::section::Section;
use super::source::{Sources, Spot};
use super::suggest::{self, quote};
use super::topology::Topology;
use super::tree::{self, Field, Node};
use super::walk::{At, Walker};
use super::{layers, pipelines, problem};
use crate::services::Services;
use crate::spec::Registry;

/// What a process knows about its configuration.
#[derive(Clone)]
pub struct Loader {
    pub registry: Registry,
    /// The top-level tables beside `pipeline`, `test` and `include`.
    pub sections: Vec<Section>,
    /// What stages may ask for while they are built.
    pub services: Services,
    /// The schema of one `[[test]]`. Without it tests are neither read nor checked, as a server needs them
    /// not.
    pub test_schema: Option<fn() -> Schema>,
}

/// A configuration in order.
#[derive(Clone)]
pub struct Loaded {
    pub topologies: Vec<Topology>,
    pub warnings: Diagnostics,
    pub tests: Vec<TestTable>,
    /// Every file that was read, the first one first.
    pub files: Vec<PathBuf>,
    /// What [`Loader::fingerprint`] gave for the files as they were read.
    pub fingerprint: u64,
    sections: BTreeMap<&'static str, Json>,
}

/// One `[[test]]`, as written.
#[derive(Debug, Clone)]
pub struct TestTable {
    pub value: Json,
    pub origin: Origin,
    /// `test[0]`.
    pub path: String,
}

impl Loaded {
    /// A section as the type its owner reads it as.
    ///
    /// # Panics
    /// If the process did not register the section, or registered it for another type.
    pub fn section<T: DeserializeOwned>(&self, name: &str) -> T {
        let table = self.sections.get(name).expect("the section is registered with the loader");
        T::deserialize(table).expect("the section was checked to read as its type when it was loaded")
    }

    /// A section as JSON, for showing.
    pub fn section_json(&self, name: &str) -> Option<&Json> {
        self.sections.get(name)
    }
}

impl Loader {
    pub fn new(registry: Registry, services: Services) -> Self {
        Self { registry, sections: Vec::new(), services, test_schema: None }
    }

    #[must_use]
    pub fn sections(mut self, sections: &[Section]) -> Self {
        self.sections.extend_from_slice(sections);
        self
    }

    #[must_use]
    pub fn tests(mut self, schema: fn() -> Schema) -> Self {
        self.test_schema = Some(schema);
        self
    }

    /// Loads a file, what it includes, and the variables of an environment.
    pub fn load(
        &self,
        file: &Path,
        environment: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Loaded, Diagnostics> {
        self.load_from(environment, |reader| reader.read_file(file))
    }

    /// Loads a text as if it stood in a file of that name.
    pub fn load_str(
        &self,
        name: &str,
        text: &str,
        environment: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Loaded, Diagnostics> {
        self.load_from(environment, |reader| reader.read_bytes(Path::new(name), text.as_bytes()))
    }

    /// Tells whether a file, or any file it includes, has changed since: the same as long as loading would read the
    /// same. Includes are followed anew, so a file that comes to match a pattern counts, and so does one that could
    /// not be read or is wrong.
    pub fn fingerprint(&self, file: &Path) -> u64 {
        let mut report = Report::default();
        let mut reader = Reader::new(self.tests_to_read(), &mut report);
        reader.read_file(file);
        reader.fingerprint()
    }

    fn tests_to_read(&self) -> Tests {
        if self.test_schema.is_some() { Tests::Read } else { Tests::Leave }
    }

    fn load_from(
        &self,
        environment: impl IntoIterator<Item = (String, String)>,
        read: impl FnOnce(&mut Reader<'_>),
    ) -> Result<Loaded, Diagnostics> {
        let mut report = Report::default();
        let mut reader = Reader::new(self.tests_to_read(), &mut report);
        read(&mut reader);
        let fingerprint = reader.fingerprint();
        let (sources, incomplete) = (reader.sources, reader.incomplete);
        let environment = Environment::read(environment, &self.sections, &mut report);
        let root = merge(&self.sections, &sources, &environment, &mut report);
        let mut loaded = self.check(&root, &sources, &mut report);
        if incomplete {
            report.forget_missing_defaults();
        }
        let failed = report.errors() > 0;
        let found = report.into_diagnostics(&sources);
        if failed {
            return Err(found);
        }
        loaded.warnings = found;
        loaded.fingerprint = fingerprint;
        loaded.files = sources.0.into_iter().map(|source| source.path).collect();
        Ok(loaded)
    }

    fn check(&self, root: &Node, sources: &Sources, report: &mut Report) -> Loaded {
        self.refuse_unknown_tables(root, report);
        let sections = self.check_sections(root, sources, report);
        let tests = self.check_tests(root, sources, report);
        let schema = schemars::schema_for!(PipelineEntry).to_value();
        let mut topologies = Vec::new();
        if let Some(node) = root.get("pipeline").filter(|node| is_array(node, "pipeline", report)) {
            let (registry, services) = (self.registry, &self.services);
            let mut check = Check { registry, services, sources, schema: &schema, report };
            topologies = pipelines::check_all(node, &mut check);
        }
        let warnings = Diagnostics::default();
        Loaded { topologies, warnings, tests, files: Vec::new(), fingerprint: 0, sections }
    }

    fn refuse_unknown_tables(&self, root: &Node, report: &mut Report) {
        let mut known = vec!["pipeline", "include"];
        known.extend(self.sections.iter().map(|section| section.name));
        let is_known = |field: &&Field| known.contains(&field.name.as_str()) || field.name == "test";
        for field in root.fields().iter().filter(|field| !is_known(field)) {
            let message = format!("unknown table {}", quote(&field.name));
            report.error(
                &field.name_at,
                &At::new("").key(&field.name).path,
                message,
                suggest::help(&field.name, &known),
            );
        }
    }

    fn check_sections(
        &self,
        root: &Node,
        sources: &Sources,
        report: &mut Report,
    ) -> BTreeMap<&'static str, Json> {
        let mut checked = BTreeMap::new();
        for section in &self.sections {
            let absent = Node::empty_table(Spot::Default);
            let node = root.get(section.name).unwrap_or(&absent);
            let at = At::new(section.name);
            let before = report.errors();
            let schema = (section.schema)().to_value();
            let table = Walker::new(&schema, report).check(node, &at);
            if report.errors() == before
                && let Err(problems) = (section.check)(&table)
            {
                problem::report_all(problems, node, &at, sources, report);
            }
            checked.insert(section.name, table);
        }
        checked
    }

    fn check_tests(&self, root: &Node, sources: &Sources, report: &mut Report) -> Vec<TestTable> {
        let Some(schema) = self.test_schema else { return Vec::new() };
        let Some(node) = root.get("test").filter(|node| is_array(node, "test", report)) else {
            return Vec::new();
        };
        let schema = schema().to_value();
        let tests = node.elements().iter().enumerate().map(|(index, node)| {
            let at = At::new("test").index(index);
            let value = Walker::new(&schema, report).check(node, &at);
            TestTable { value, origin: sources.origin(&node.at), path: at.path }
        });
        tests.collect()
    }
}

fn merge(sections: &[Section], sources: &Sources, environment: &Environment, report: &mut Report) -> Node {
    let figment = layers::merge(sections, sources, environment);
    tree::locate(&figment, sources, environment).unwrap_or_else(|error| {
        report.error(&Spot::Default, "", error, None);
        Node::empty_table(Spot::Default)
    })
}

fn is_array(node: &Node, name: &str, report: &mut Report) -> bool {
    let fits = node.type_name() == "array";
    if !fits {
        let help = Some(format!("write `[[{name}]]`"));
        report.error(&node.at, name, format!("`{name}` must be an array of tables"), help);
    }
    fits
}
