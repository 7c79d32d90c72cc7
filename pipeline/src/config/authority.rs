//! Who may write what: rules over what stages declare, checked when a file is loaded.
//!
//! The store is the truth, the log says what happened to it, the live level forgets. A pipeline that breaks
//! this order works in every test and loses or invents data on the first crash, so it is refused before it
//! runs. Rules are rows, so that they can be listed, documented and tested one by one; each test shows the
//! message.

use super::entry::Plane;
use crate::spec::{Access, Effect, Level, Mode};

/// One thing that pipelines of some planes may not do.
#[derive(Debug)]
pub struct Rule {
    pub id: &'static str,
    pub name: &'static str,
    pub planes: Planes,
    pub act: Act,
    pub unless: Unless,
    /// `{pipeline}`, `{plane}`, `{stage}` and `{act}` are filled in.
    pub message: &'static str,
    pub help: &'static str,
}

/// The pipelines a rule is about.
#[derive(Debug, Clone, Copy)]
pub enum Planes {
    All,
    Only(Plane),
    Except(&'static [Plane]),
    /// Those of one plane, and any other that writes to a level.
    OnlyOrWriting(Plane, Level),
}

/// What a stage does.
#[derive(Debug, Clone, Copy)]
pub enum Act {
    Touches(&'static [(Level, Mode)]),
    Has(Effect),
}

/// What makes the act right.
#[derive(Debug, Clone, Copy)]
pub enum Unless {
    Never,
    /// The same stage also does this.
    Itself(Level, Mode),
    /// The stage, or one before it on its path, does this.
    UpToHere(Level, Mode),
}

const WRITES_STORE: &[(Level, Mode)] = &[(Level::Store, Mode::Write), (Level::Store, Mode::Fill)];
const WRITES_STORE_OR_LOG: &[(Level, Mode)] = &[
    (Level::Store, Mode::Write),
    (Level::Store, Mode::Fill),
    (Level::Log, Mode::Write),
    (Level::Log, Mode::Fill),
];

pub static RULES: &[Rule] = &[
    Rule {
        id: "A1",
        name: "one plane writes the store",
        // The connection plane has its own rule.
        planes: Planes::Except(&[Plane::Durability, Plane::Connection]),
        act: Act::Touches(WRITES_STORE),
        unless: Unless::Never,
        message: "pipeline `{pipeline}` is on the {plane} plane, but its stage `{stage}` {act}",
        help: "only the durability plane writes the store: move the stage to a pipeline with \
               `plane = \"durability\"`",
    },
    Rule {
        id: "A2",
        name: "persist before publish",
        planes: Planes::OnlyOrWriting(Plane::Durability, Level::Store),
        act: Act::Touches(&[(Level::Log, Mode::Write)]),
        unless: Unless::UpToHere(Level::Store, Mode::Write),
        message: "stage `{stage}` {act} before anything is stored",
        help: "an event may only tell of what is durable: put the stage behind the one that writes the store",
    },
    Rule {
        id: "A3",
        name: "caches are filled from the store",
        planes: Planes::All,
        act: Act::Touches(&[(Level::Live, Mode::Fill)]),
        unless: Unless::Itself(Level::Store, Mode::Read),
        message: "stage `{stage}` {act} from the records it is given, not from the store",
        help: "events come late, twice and out of order: drop the cached value on an event and fill it from a read \
               of the store",
    },
    Rule {
        id: "A4",
        name: "replay stays in the house",
        planes: Planes::Only(Plane::Replay),
        act: Act::Has(Effect::ExternalEffect),
        unless: Unless::Never,
        message: "pipeline `{pipeline}` runs history again, and its stage `{stage}` {act}",
        help: "replay into something that can be built again, such as an index or a table of its own",
    },
    Rule {
        id: "A5",
        name: "the connection plane owns nothing",
        planes: Planes::Only(Plane::Connection),
        act: Act::Touches(WRITES_STORE_OR_LOG),
        unless: Unless::Never,
        message: "pipeline `{pipeline}` is on the connection plane, but its stage `{stage}` {act}",
        help: "hand the command to a pipeline on the durability plane",
    },
];

/// What one stage declares.
pub struct Declared<'a> {
    pub stage: &'a str,
    /// None if its kind is not known.
    pub effect: Option<Effect>,
    /// None if it could not be built; it may then do anything.
    pub access: Option<&'a [Access]>,
    pub input: Option<usize>,
}

/// A rule that a stage breaks.
#[derive(Debug)]
pub struct Violation {
    pub rule: &'static Rule,
    /// Index among the declared stages.
    pub stage: usize,
    pub message: String,
}

impl Violation {
    pub fn help(&self) -> String {
        format!("{} (rule {}: {})", self.rule.help, self.rule.id, self.rule.name)
    }
}

/// Every rule broken by a pipeline, stage by stage.
pub fn violations(pipeline: &str, plane: Plane, stages: &[Declared<'_>]) -> Vec<Violation> {
    let mut found = Vec::new();
    for (index, declared) in stages.iter().enumerate() {
        for rule in RULES.iter().filter(|rule| rule.is_about(plane, stages)) {
            if let Some(act) = rule.act.done_by(declared)
                && !rule.is_excused(index, stages)
            {
                let message = rule
                    .message
                    .replace("{pipeline}", pipeline)
                    .replace("{plane}", plane.name())
                    .replace("{stage}", declared.stage)
                    .replace("{act}", &act);
                found.push(Violation { rule, stage: index, message });
            }
        }
    }
    found
}

impl Rule {
    fn is_about(&self, plane: Plane, stages: &[Declared<'_>]) -> bool {
        match self.planes {
            Planes::All => true,
            Planes::Only(only) => plane == only,
            Planes::Except(planes) => !planes.contains(&plane),
            Planes::OnlyOrWriting(only, level) => {
                plane == only || stages.iter().any(|stage| stage.surely_does(level, Mode::Write))
            }
        }
    }

    fn is_excused(&self, index: usize, stages: &[Declared<'_>]) -> bool {
        match self.unless {
            Unless::Never => false,
            Unless::Itself(level, mode) => stages[index].may_do(level, mode),
            Unless::UpToHere(level, mode) => {
                let path = std::iter::successors(Some(index), |index| stages[*index].input);
                // An input always comes earlier, so the path is no longer than the pipeline.
                path.take(stages.len()).any(|index| stages[index].may_do(level, mode))
            }
        }
    }
}

impl Act {
    /// What the stage does in words, if it does this.
    fn done_by(self, declared: &Declared<'_>) -> Option<String> {
        match self {
            Self::Has(effect) => (declared.effect == Some(effect)).then(|| "has effects outside".to_owned()),
            Self::Touches(listed) => {
                let done =
                    declared.access?.iter().filter(|access| listed.contains(&(access.level, access.mode)));
                let words: Vec<String> = done.map(in_words).collect();
                (!words.is_empty()).then(|| words.join(" and "))
            }
        }
    }
}

/// ``writes the store (table `messages`)``.
fn in_words(access: &Access) -> String {
    let (level, noun) = match access.level {
        Level::Store => ("the store", "table"),
        Level::Log => ("the log", "topic"),
        Level::Live => ("the cache", "keys"),
    };
    format!("{} {level} ({noun} `{}`)", access.mode.name(), access.name)
}

impl Declared<'_> {
    fn surely_does(&self, level: Level, mode: Mode) -> bool {
        self.access.is_some_and(|all| all.iter().any(|access| (access.level, access.mode) == (level, mode)))
    }

    fn may_do(&self, level: Level, mode: Mode) -> bool {
        self.access.is_none() || self.surely_does(level, mode)
    }
}
