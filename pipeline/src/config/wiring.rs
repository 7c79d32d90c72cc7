//! Which stage feeds which, and whether what flows there fits.

use super::draft::{Draft, DraftStage};
use super::report::Report;
use super::source::Spot;
use super::suggest::{self, list, quote};
use super::topology::Input;
use super::tree::Node;
use crate::batch::Output;
use crate::spec::{ANY, Gives, RecordKind, Registry, Role, Takes};

/// Where a stage's records come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Link {
    /// It is the source.
    Start,
    From(Input),
    /// Something is wrong with it, and has been reported.
    Broken,
}

impl Link {
    pub(super) fn input(self) -> Option<Input> {
        match self {
            Self::From(input) => Some(input),
            Self::Start | Self::Broken => None,
        }
    }
}

/// Links every stage to its input and checks names, ends and ports on the way.
pub(super) fn wire(draft: &Draft<'_>, registry: Registry, report: &mut Report) -> Vec<Link> {
    let mut wiring = Wiring { draft, stages: &draft.stages, report };
    wiring.refuse_same_names();
    let links: Vec<Link> = (0..draft.stages.len()).map(|stage| wiring.link(stage)).collect();
    wiring.check_ports(&links, registry);
    wiring.check_reply();
    if !links.contains(&Link::Broken) {
        wiring.warn_of_loose_ends(&links);
    }
    links
}

struct Wiring<'w, 'n> {
    draft: &'w Draft<'n>,
    stages: &'w [DraftStage<'n>],
    report: &'w mut Report,
}

impl Wiring<'_, '_> {
    fn refuse_same_names(&mut self) {
        for (index, stage) in self.stages.iter().enumerate() {
            if !self.stages[..index].iter().any(|other| other.name == stage.name) {
                continue;
            }
            let written = stage.node.get("name");
            let spot = written.map_or(stage.spot(), |name| &name.at);
            let help = match written {
                Some(_) => "choose another name".to_owned(),
                None => {
                    format!("the kind appears twice: give one a name, such as `name = \"{}-2\"`", stage.name)
                }
            };
            let message = format!("two stages are called {}", quote(&stage.name));
            self.report.error(spot, &stage.at.path, message, Some(help));
        }
    }

    fn link(&mut self, index: usize) -> Link {
        let stage = &self.stages[index];
        let written = stage.node.get("input");
        match (index, written, written.and_then(Node::text)) {
            (0, Some(input), _) => {
                let message = "the first stage is the source and takes no input".to_owned();
                self.report.error(&input.at, &stage.at.key("input").path, message, None);
                Link::Start
            }
            (0, None, _) => Link::Start,
            (_, None, _) => self.connect(index, index - 1, None, stage.spot()),
            (_, Some(_), None) => Link::Broken, // not a string, reported
            (_, Some(input), Some(name)) => self.link_by_name(index, name, &input.at),
        }
    }

    fn link_by_name(&mut self, index: usize, name: &str, spot: &Spot) -> Link {
        let find = |name: &str| self.stages.iter().position(|stage| stage.name == name);
        let (from, output) = match (find(name), name.rsplit_once('.')) {
            (Some(from), _) => (Some(from), None),
            (None, Some((stage, output))) => (find(stage), Some(output)),
            (None, None) => (None, None),
        };
        match from {
            Some(from) if from < index => self.connect(index, from, output, spot),
            Some(_) => {
                let message = format!("{} is not before {}", quote(name), quote(&self.stages[index].name));
                self.input_error(
                    index,
                    spot,
                    message,
                    Some("a stage takes its input from an earlier one".into()),
                )
            }
            None => {
                let known = self.inputs_before(index);
                let known: Vec<&str> = known.iter().map(String::as_str).collect();
                let message = format!("no stage is called {}", quote(name));
                self.input_error(index, spot, message, suggest::help(name, &known))
            }
        }
    }

    /// Everything that may be written as `input` at a stage.
    fn inputs_before(&self, index: usize) -> Vec<String> {
        let earlier = self.stages[..index].iter().filter(|stage| stage.role() != Some(Role::Sink));
        earlier
            .flat_map(|stage| match stage.built.as_ref().map(|built| &built.outputs[..]) {
                Some(outputs @ [_, _, ..]) => {
                    outputs.iter().map(|output| format!("{}.{output}", stage.name)).collect()
                }
                _ => vec![stage.name.clone()],
            })
            .collect()
    }

    fn connect(&mut self, index: usize, from: usize, output: Option<&str>, spot: &Spot) -> Link {
        let giver = &self.stages[from];
        let Some(spec) = giver.spec else { return Link::Broken };
        if spec.role == Role::Sink {
            let message = format!("nothing comes out of `{}`: it is a sink", giver.name);
            let known = self.inputs_before(index);
            let help =
                known.last().map(|input| format!("say where the records come from: `input = \"{input}\"`"));
            return self.input_error(index, spot, message, help);
        }
        let Some(built) = &giver.built else { return Link::Broken };
        if let Some(output) = output_index(&built.outputs, output) {
            return Link::From(Input { stage: from, output });
        }
        let (message, help) = no_such_output(&giver.name, &built.outputs, output);
        self.input_error(index, spot, message, Some(help))
    }

    fn input_error(&mut self, index: usize, spot: &Spot, message: String, help: Option<String>) -> Link {
        self.report.error(spot, &self.stages[index].at.key("input").path, message, help);
        Link::Broken
    }

    fn check_ports(&mut self, links: &[Link], registry: Registry) {
        let mut given: Vec<Option<RecordKind>> = Vec::with_capacity(links.len());
        for (index, link) in links.iter().enumerate() {
            let stage = &self.stages[index];
            let incoming = link.input().and_then(|input| Some((input, given[input.stage]?)));
            if let (Some(spec), Some((input, kind))) = (stage.spec, incoming)
                && let Takes::Only(taken) = spec.takes
                && !taken.iter().any(|taken| *taken == kind || *taken == ANY)
                && kind != ANY
            {
                let before = &self.stages[input.stage].name;
                let message =
                    format!("`{}` takes {}, but `{before}` gives `{kind}`", stage.name, list(taken, "or"));
                let spot = stage.node.get("input").map_or(stage.spot(), |written| &written.at);
                self.report.error(spot, &stage.at.path, message, converter(registry, kind, taken));
            }
            given.push(match stage.spec.map(|spec| spec.gives) {
                Some(Gives::Kind(kind)) => Some(kind),
                Some(Gives::Same) => incoming.map(|(_, kind)| kind),
                Some(Gives::Nothing) | None => None,
            });
        }
    }

    fn check_reply(&mut self) {
        let Some(written) = self.draft.node.get("reply_after") else { return };
        let Some(name) = written.text() else { return };
        let (message, help) = match self.stages.iter().position(|stage| stage.name == name) {
            Some(1..) => return,
            Some(_) => {
                let message = format!("{} is the source, which has done nothing yet", quote(name));
                (message, Some("name the stage after which a client may rely on its record".to_owned()))
            }
            None => {
                let names: Vec<&str> = self.stages.iter().skip(1).map(|stage| stage.name.as_str()).collect();
                (format!("no stage is called {}", quote(name)), suggest::help(name, &names))
            }
        };
        let path = self.draft.at.key("reply_after").path;
        self.report.error(&written.at, &path, message, help);
    }

    fn warn_of_loose_ends(&mut self, links: &[Link]) {
        for (index, stage) in self.stages.iter().enumerate() {
            let Some(built) = stage.built.as_ref().filter(|_| stage.role() != Some(Role::Sink)) else {
                continue;
            };
            let taken = |output: usize| {
                let inputs = links.iter().filter_map(|link| link.input());
                inputs.into_iter().any(|input| input.stage == index && usize::from(input.output) == output)
            };
            if built.outputs.len() > 1 {
                for (_, output) in built.outputs.iter().enumerate().filter(|(output, _)| !taken(*output)) {
                    let message =
                        format!("no stage takes the output `{output}` of `{}`: it ends here", stage.name);
                    let help = Some(format!("a stage with `input = \"{}.{output}\"` takes it", stage.name));
                    self.report.warning(stage.spot(), &stage.at.path, message, help);
                }
            } else if !taken(0) {
                let role = stage.role().map_or("stage", Role::name);
                let message = format!("the pipeline ends in the {role} `{}`", stage.name);
                let help = Some("its records are counted as delivered and go nowhere".to_owned());
                self.report.warning(stage.spot(), &stage.at.path, message, help);
            }
        }
    }
}

/// The number of an output; the only one needs no name.
fn output_index(outputs: &[String], name: Option<&str>) -> Option<Output> {
    let index = match name {
        None => (outputs.len() <= 1).then_some(0),
        Some(name) => outputs.iter().position(|output| output == name),
    };
    index.and_then(|index| Output::try_from(index).ok())
}

fn no_such_output(stage: &str, outputs: &[String], name: Option<&str>) -> (String, String) {
    match (name, outputs.first()) {
        (None, first) => {
            let example = first.map_or("", String::as_str);
            let message = format!("`{stage}` has the outputs {}: say which one", list(outputs, "and"));
            (message, format!("write it like `input = \"{stage}.{example}\"`"))
        }
        (Some(name), None) => {
            let message = format!("`{stage}` has one output only, and it is not called {}", quote(name));
            (message, format!("write `input = \"{stage}\"`"))
        }
        (Some(name), Some(_)) => {
            let help = match suggest::nearest(name, outputs.iter().map(String::as_str)) {
                Some(near) => format!("did you mean `{stage}.{near}`?"),
                None => format!("it has {}", list(outputs, "and")),
            };
            (format!("`{stage}` has no output {}", quote(name)), help)
        }
    }
}

/// A transform that would make the records fit.
fn converter(registry: Registry, from: RecordKind, to: &[RecordKind]) -> Option<String> {
    let fits = |takes: Takes| matches!(takes, Takes::Only(kinds) if kinds.contains(&from));
    let makes = |gives: Gives| match gives {
        Gives::Kind(kind) => to.iter().copied().find(|wanted| *wanted == kind),
        Gives::Same | Gives::Nothing => None,
    };
    let mut transforms = registry.0.iter().filter(|spec| spec.role == Role::Transform && fits(spec.takes));
    transforms.find_map(|spec| Some(format!("`{}` makes `{}` of `{from}`", spec.kind, makes(spec.gives)?)))
}
