//! Names, inputs, outputs and ends.

use super::{loaded, places, refused, refused_at};
use crate::config::Input;
use crate::intake::WayIn;

fn pipeline(stages: &str) -> String {
    format!("[[pipeline]]\nname = 'p'\nstage = [\n{stages}\n]\n")
}

#[test]
fn a_topology_has_everything_the_runtime_needs() {
    let loaded = loaded(
        "\
[[pipeline]]
name = 'ingest'
plane = 'durability'
reply_after = 'store'
[[pipeline.stage]]
kind = 'generate'
[[pipeline.stage]]
kind = 'persist'
name = 'store'
lanes = 4
buffer = 100
on_error = 'stop'
[[pipeline.stage]]
kind = 'route'
params = { routes = { b = '.b', a = '.a' } }
[[pipeline.stage]]
kind = 'publish'
input = 'route.b'
dead_letter = 'unpublished'
params = { topic = 't' }
[[pipeline.stage]]
kind = 'file'
input = 'route.a'
",
    );
    let topology = &loaded.topologies[0];
    assert_eq!((&*topology.name, topology.reply_after), ("ingest", Some(1)));
    let inputs: Vec<_> = topology.stages.iter().map(|stage| stage.input).collect();
    let from = |stage, output| Some(Input { stage, output });
    assert_eq!(inputs, [None, from(0, 0), from(1, 0), from(2, 1), from(2, 0)]);
    let policy = &topology.stages[1].policy;
    assert_eq!((policy.lanes, policy.buffer, &*policy.dead_letter_queue), (Some(4), Some(100), "ingest"));
    assert_eq!(&*topology.stages[3].policy.dead_letter_queue, "unpublished");
    assert_eq!(topology.stages[3].params["topic"], "t");
    // Written `b` before `a`, and a kind may care.
    let routes = topology.stages[2].params["routes"].as_object().unwrap();
    assert_eq!(routes.keys().collect::<Vec<_>>(), ["b", "a"]);
    assert!(loaded.warnings.is_empty(), "{}", loaded.warnings);
    assert!(topology.build(&crate::Services::default()).is_ok());
}

#[test]
fn a_pipeline_may_be_called_like_a_secret() {
    let found = refused("[[pipeline]]\nname = 'token'\nplane = 'durabel'\nstage = []\n");
    assert!(found.contains("`durabel` is not a value of `plane`"), "{found}");
    assert!(found.contains("a pipeline needs at least a source"), "{found}");
}

#[test]
fn kinds_have_their_place() {
    let text = pipeline("{ kind = 'resolve' },\n{ kind = 'generate' },\n{ kind = 'file' },");
    let found = refused_at(&text);
    assert_eq!(
        found,
        [
            "4:10 a pipeline starts with a source, and `resolve` is a transform",
            "5:10 `generate` is a source and can only be the first stage",
        ]
    );
    // A kind of two roles is what its place says.
    let both = loaded(&pipeline("{ kind = 'file' },\n{ name = 'out', kind = 'file' },"));
    assert_eq!(both.topologies[0].stages[0].spec.summary, "Reads lines.");
    assert_eq!(both.topologies[0].stages[1].spec.summary, "Writes lines.");
}

#[test]
fn suggestions_fit_the_place() {
    // `file` and `filter` are both near; only one can stand first.
    assert!(
        refused(&pipeline("{ kind = 'filer' },\n{ kind = 'persist' },")).contains("did you mean `file`?")
    );
    assert!(refused(&pipeline("{ kind = 'filtr' },")).contains("`courant stages` lists the sources"));
}

#[test]
fn names_are_unique_and_plain() {
    let found = refused(&pipeline(
        "\
{ kind = 'generate' },
{ kind = 'filter', params = { expr = '.' } },
{ kind = 'filter', params = { expr = '.' } },
{ kind = 'file', name = 'Out Put' },",
    ));
    assert!(found.contains("two stages are called `filter`"), "{found}");
    assert!(found.contains("give one a name, such as `name = \"filter-2\"`"), "{found}");
    assert!(found.contains("`Out Put` cannot be the name of a stage"), "{found}");
    let found = refused("[[pipeline]]\nname = '../x'\nstage = [{ kind = 'generate' }]");
    assert!(found.contains("`../x` cannot be the name of a pipeline"), "{found}");
    assert!(found.contains("pipelines.toml:2:8 (pipeline[0].name)"), "{found}");
}

#[test]
fn nothing_comes_out_of_a_sink() {
    let found = refused(&pipeline(
        "{ kind = 'generate' },\n{ kind = 'file' },\n{ kind = 'webhook', params = { url = 'u' } },",
    ));
    assert!(found.contains("nothing comes out of `file`: it is a sink"), "{found}");
    assert!(found.contains("`input = \"generate\"`"), "{found}");
}

#[test]
fn inputs_name_an_earlier_stage_and_its_output() {
    let stages = |input: &str| {
        pipeline(&format!(
            "\
{{ kind = 'generate' }},
{{ kind = 'route', params = {{ routes = {{ errors = '.e', rest = '.r' }} }} }},
{{ kind = 'file'{input} }},"
        ))
    };
    let refused = |input: &str| refused(&stages(input));
    let found = refused("");
    assert!(found.contains("`route` has the outputs `errors` and `rest`: say which one"), "{found}");
    assert!(found.contains("write it like `input = \"route.errors\"`"), "{found}");
    assert!(refused(", input = 'route'").contains("say which one"));
    assert!(refused(", input = 'route.error'").contains("did you mean `route.errors`?"));
    assert!(refused(", input = 'generate.x'").contains("write `input = \"generate\"`"));
    assert!(refused(", input = 'file'").contains("`file` is not before `file`"));
    assert!(refused(", input = 'rout.rest'").contains("did you mean `route.rest`?"));

    let found = loaded(&stages(", input = 'route.rest'"));
    assert_eq!(places(&found.warnings), ["5:10 no stage takes the output `errors` of `route`: it ends here"]);
}

#[test]
fn nothing_is_said_about_outputs_that_are_not_known() {
    let text = pipeline(
        "\
{ kind = 'generate' },
{ kind = 'route', params = { routes = { errors = '.e', rest = 7 } } },
{ kind = 'file', input = 'route.rest' },",
    );
    assert_eq!(refused_at(&text), ["5:63 `rest` must be a string, not a whole number"]);
}

#[test]
fn a_transform_at_the_end_is_allowed_and_pointed_out() {
    let found = loaded(
        &pipeline("{ kind = 'generate' },\n{ kind = 'persist' },")
            .replace("'p'", "'p'\nplane = 'durability'"),
    );
    assert_eq!(places(&found.warnings), ["6:10 the pipeline ends in the transform `persist`"]);
}

#[test]
fn ports_fit_through_stages_that_change_nothing() {
    let found = refused(&pipeline(
        "{ kind = 'generate' },\n{ kind = 'filter', params = { expr = '.' } },\n{ kind = 'deliver' },",
    ));
    assert!(found.contains("`deliver` takes `delivery`, but `filter` gives `message-event`"), "{found}");
}

#[test]
fn the_reply_names_a_stage_and_the_source_takes_no_input() {
    let found = refused(
        "\
[[pipeline]]
name = 'p'
reply_after = 'fiel'
stage = [{ kind = 'generate', input = 'x' }, { kind = 'file' }]",
    );
    assert!(found.contains("did you mean `file`?"), "{found}");
    assert!(found.contains("the first stage is the source and takes no input"), "{found}");
}

#[test]
fn nobody_is_answered_by_the_source() {
    let text = "[[pipeline]]\nname = 'p'\nreply_after = 'generate'\nstage = [{ kind = 'generate' }, { kind = 'file' }]";
    let found = refused(text);
    assert!(found.contains("`generate` is the source, which has done nothing yet"), "{found}");
    assert!(found.contains("pipelines.toml:3:15 (pipeline.p.reply_after)"), "{found}");
    loaded(&text.replace("'generate'\n", "'file'\n"));
}

#[test]
fn there_is_a_pause_between_two_tries() {
    let retry = |retry: &str| {
        pipeline(&format!("{{ kind = 'generate' }},\n{{ kind = 'file', retry = {{ {retry} }} }},"))
    };
    let found = refused(&retry("initial = '0s', max = '10us'"));
    assert!(found.contains("pipelines.toml:5:38 (pipeline.p.stage[1].retry.initial)"), "{found}");
    assert!(found.contains("`max` is too short"), "{found}");
    loaded(&retry("initial = '1ms', max = '1ms', circuit_pause = '0s', deadline = '0s'"));
}

#[test]
fn a_dead_letter_queue_has_a_name_like_others() {
    for name in ["", "Lost And Found", "../up", &"x".repeat(65)] {
        let found = refused(&pipeline(&format!(
            "{{ kind = 'generate' }},\n{{ kind = 'file', dead_letter = '{name}' }},"
        )));
        assert!(found.contains("cannot be the name of a dead-letter queue"), "{name}: {found}");
        assert!(found.contains("pipelines.toml:5:32 (pipeline.p.stage[1].dead_letter)"), "{name}: {found}");
    }
    loaded(&pipeline("{ kind = 'generate' },\n{ kind = 'file', dead_letter = 'lost.2_found' },"));
}

#[test]
fn letters_do_not_go_back_to_the_queue_they_are_read_from() {
    let stages = |own: &str, other: &str| {
        pipeline(&format!(
            "\
{{ kind = 'letters', params = {{ queue = 'q' }} }},
{{ kind = 'filter', params = {{ expr = '.' }}{own} }},
{{ kind = 'file'{other} }},"
        ))
    };
    let found = refused_at(&stages(", dead_letter = 'q'", ", dead_letter = 'q'"));
    assert_eq!(
        found,
        [
            "4:40 letters of `filter` and `file` go to the queue `q` that this pipeline reads, and would come back for ever"
        ]
    );
    assert_eq!(refused_at(&stages("", "").replace("'p'", "'q'")).len(), 1, "the queue of its own name");
    loaded(&stages(", dead_letter = 'q2'", ""));
    loaded(&stages(", dead_letter = 'q', on_error = 'drop'", ""));
}

#[test]
fn a_command_is_taken_by_one_pipeline() {
    let text = "\
[[pipeline]]
name = 'ingest'
stage = [{ kind = 'take', params = { commands = ['send', 'ack'] } }, { kind = 'file' }]
[[pipeline]]
name = 'copy'
stage = [{ kind = 'take', params = { commands = ['rename', 'send'] } }, { kind = 'file' }]
";
    let expected = "\
error: the pipeline `ingest` takes `send` from `rest` already
 --> pipelines.toml:6:19 (pipeline.copy.stage[0])
  |
6 | stage = [{ kind = 'take', params = { commands = ['rename', 'send'] } }, { kind = 'file' }]
  |                   ^^^^^^
  = help: a command has one way in: name it in one of them only
";
    assert_eq!(refused(text), expected);
    let apart = loaded(&text.replace("'rename', 'send'", "'rename'"));
    assert_eq!(apart.topologies[1].serves, [WayIn { door: "rest", command: "rename".to_owned() }]);
}
