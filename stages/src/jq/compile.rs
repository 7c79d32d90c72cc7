//! From the text of an expression to a filter, or to problems with their places.

use bytes::Bytes;
use courant_pipeline::spec::Problem;
use jaq_core::compile::Undefined;
use jaq_core::load::parse::Def;
use jaq_core::load::{self, Arena, File, Loader, lex};
use jaq_core::native::{self, Fun};
use jaq_core::{Compiler, Filter};
use jaq_json::{Error, Val};

use super::{Data, json};

/// Functions that reach outside of the record: the environment holds secrets, `halt` would end the process, and
/// the others write payloads to the log.
const WITHHELD: [&str; 7] = ["env", "halt", "halt_error", "debug", "stderr", "input", "inputs"];
/// Native functions that are left out: those the withheld ones are made of, and those replaced here.
const LEFT_OUT: [&str; 5] = ["env", "halt", "debug_empty", "stderr_empty", "fromjson"];

/// Names less alike than this are no help.
const ALIKE: f64 = 0.75;

pub(super) fn compile(key: &str, code: &str, variables: &[&str]) -> Result<Filter<Data>, Vec<Problem>> {
    let place = Place { key, code };
    let arena = Arena::default();
    let modules = Loader::new(definitions())
        .load(&arena, File { code, path: () })
        .map_err(|errors| place.load_problems(errors))?;
    load::import(&modules, |_| Err("there are no files to import".to_owned()))
        .map_err(|errors| place.load_problems(errors))?;
    Compiler::default()
        .with_funs(functions())
        .with_global_vars(variables.iter().copied())
        .compile(modules)
        .map_err(|errors| {
            let undefined = errors.into_iter().flat_map(|(_, errors)| errors);
            undefined.map(|(name, kind)| place.undefined(name, &kind, variables)).collect()
        })
}

fn definitions() -> impl Iterator<Item = Def<&'static str>> {
    let all = jaq_core::defs().chain(jaq_std::defs()).chain(jaq_json::defs());
    all.filter(|def| !WITHHELD.contains(&def.name))
}

fn functions() -> impl Iterator<Item = Fun<Data>> {
    let all = jaq_core::funs().chain(jaq_std::funs()).chain(jaq_json::funs());
    let own = native::run::<Data>(("fromjson", native::v(0), |cv| native::bome(from_json(&cv.1))));
    all.filter(|(name, ..)| !LEFT_OUT.contains(name)).chain([own])
}

/// jaq's own reads any depth, and so would overflow the stack on a hostile text.
fn from_json(value: &Val) -> Result<Val, Error> {
    match value {
        Val::TStr(text) | Val::BStr(text) => {
            json::parse(&Bytes::clone(text)).map_err(|error| Error::str(format_args!("{error}")))
        }
        other => Err(Error::typ(other.clone(), "string")),
    }
}

/// Where an expression stands, for saying where it is wrong.
struct Place<'a> {
    key: &'a str,
    code: &'a str,
}

impl Place<'_> {
    fn problem(&self, part: &str, message: String) -> Problem {
        let problem = Problem::new(self.key, message);
        match (part.as_ptr() as usize).checked_sub(self.code.as_ptr() as usize) {
            Some(offset) if offset <= self.code.len() => problem.at(offset),
            _ => problem, // a part of something else, such as jaq's own definitions
        }
    }

    fn load_problems(&self, errors: load::Errors<&str, ()>) -> Vec<Problem> {
        let problems = errors.into_iter().flat_map(|(_, error)| match error {
            load::Error::Lex(errors) => errors.into_iter().map(|error| self.lex_problem(error)).collect(),
            load::Error::Parse(errors) => errors
                .into_iter()
                .map(|(expected, found)| {
                    self.problem(found, format!("expected {}, found {}", expected.as_str(), shown(found)))
                })
                .collect(),
            load::Error::Io(errors) => errors
                .into_iter()
                .map(|(path, _)| {
                    self.problem(path, format!("cannot load `{path}`")).help(
                        "expressions in pipelines cannot import; write the definitions before the expression",
                    )
                })
                .collect::<Vec<_>>(),
        });
        problems.collect()
    }

    fn lex_problem(&self, (expected, found): lex::Error<&str>) -> Problem {
        match expected {
            lex::Expect::Delim(opened) => self.problem(opened, format!("`{opened}` is not closed")),
            lex::Expect::Token => self.problem(found, format!("unexpected {}", shown(found))),
            other => self.problem(found, format!("expected {}, found {}", other.as_str(), shown(found))),
        }
    }

    fn undefined(&self, name: &str, kind: &Undefined, variables: &[&str]) -> Problem {
        let Undefined::Filter(arity) = kind else {
            let problem = self.problem(name, format!("unknown {} `{name}`", kind.as_str()));
            return match (kind, variables) {
                (Undefined::Var, [_, ..]) => problem.help(format!("there are {}", variables.join(", "))),
                _ => problem,
            };
        };
        let problem = self.problem(name, format!("unknown function `{name}/{arity}`"));
        if WITHHELD.contains(&name) {
            return problem.help(format!("`{name}` is not available in pipelines"));
        }
        match suggestion(name) {
            Some(help) => problem.help(help),
            None => problem,
        }
    }
}

/// What the user may have meant: the same name with other arguments, or a name like it.
fn suggestion(name: &str) -> Option<String> {
    let defined = definitions().map(|def| (def.name, def.args.len()));
    let native = functions().map(|(name, args, _)| (name, args.len()));
    let mut known: Vec<(&str, usize)> = defined.chain(native).collect();
    known.sort_unstable();
    let arities: Vec<_> =
        known.iter().filter(|(known, _)| *known == name).map(|(_, n)| n.to_string()).collect();
    if !arities.is_empty() {
        return Some(format!("`{name}` takes {} arguments", arities.join(" or ")));
    }
    let alike = known.iter().map(|(known, _)| (strsim::jaro_winkler(name, known), known));
    let (likeness, closest) = alike.max_by(|one, other| one.0.total_cmp(&other.0))?;
    (likeness > ALIKE).then(|| format!("did you mean `{closest}`?"))
}

/// What stands at the place of an error, short enough to quote.
fn shown(found: &str) -> String {
    match found.split_whitespace().next() {
        None => "the end of the expression".to_owned(),
        Some(word) => format!("`{}`", word.chars().take(20).collect::<String>()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(code: &str) -> Problem {
        let mut problems = compile("expr", code, &["$key"]).err().expect("the expression is wrong");
        problems.remove(0)
    }

    #[test]
    fn problems_name_the_place() {
        for (code, offset, message) in [
            (".a | selekt(.b)", 5, "unknown function `selekt/1`"),
            (".a == ", 6, "expected term, found the end of the expression"),
            (".a | (.b", 5, "`(` is not closed"),
            (".a ) .b", 3, "unexpected `)`"),
            ("$keys", 0, "unknown variable `$keys`"),
            ("include \"x\"; .", 8, "cannot load `x`"),
            ("import \"x\" as $x; $x", 7, "cannot load `x`"),
        ] {
            let problem = problem(code);
            assert_eq!((problem.key.as_str(), problem.message.as_str()), ("expr", message), "{code}");
            assert!(
                problem.offset.is_some_and(|at| at.abs_diff(offset) <= 1),
                "{code}: {:?}",
                problem.offset
            );
        }
    }

    #[test]
    fn problems_help_where_they_can() {
        let help = |code| problem(code).help.unwrap_or_default();
        assert_eq!(help("selekt(.b)"), "did you mean `select`?");
        assert_eq!(help("test"), "`test` takes 1 or 2 arguments");
        assert_eq!(help("$keys"), "there are $key");
        assert_eq!(help("qqqqq"), "");
    }

    #[test]
    fn the_outside_world_is_out_of_reach() {
        for code in [
            "env",
            "env.HOME",
            "$ENV",
            "$ENV.HOME",
            "halt",
            "halt_error",
            "input",
            "inputs",
            "debug",
            "stderr",
        ] {
            assert!(compile("expr", code, &[]).is_err(), "{code}");
        }
        assert!(problem("env.PATH").help.is_some_and(|help| help.contains("not available")));
    }
}
