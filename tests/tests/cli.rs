//! Exit codes as `courant --help` documents them, and starts that are refused.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::net::TcpListener;

use courant_tests::{Courant, Home, LIMIT, home, until};

const PIPELINE: &str = r#"
[[pipeline]]
name = "p"
stage = [
  { kind = "generate", params = { rate = 100 } },
  { kind = "blackhole" },
]
"#;

#[test]
fn the_help_documents_the_codes() {
    let help = home!().run(&["--help"]).ok();
    for code in [
        "0  all went well",
        "1  it failed; standard error says why",
        "2  the command line is wrong",
        "3  the configuration is wrong, or `drift` found a difference",
        "4  a test of `courant test` failed",
        "5  no running process answered",
    ] {
        assert!(help.contains(code), "{help}");
    }
}

#[test]
fn a_wrong_command_line_is_2() {
    let home = home!().with(PIPELINE);
    for wrong in
        [&["frob"][..], &["run", "--fast"], &["tap"], &["graph", "--format", "png"], &["completions", "csh"]]
    {
        let said = home.run(wrong).refused(2);
        assert!(said.starts_with("error: "), "{wrong:?}: {said}");
    }
    let said = home.run(&["top", "--every", "0s"]).refused(2);
    assert!(said.contains("write a time above zero"), "{said}");
}

#[test]
fn a_wrong_configuration_is_3_for_every_command_that_needs_it() {
    let home = home!().with(&PIPELINE.replace("blackhole", "blackhol"));
    for command in [
        &[][..],
        &["run"],
        &["check"],
        &["plan"],
        &["graph"],
        &["test"],
        &["tables", "create"],
        &["topics", "create"],
        &["iam", "p"],
        &["bench", "store"],
        &["bench", "log"],
    ] {
        let said = home.run(command).refused(3);
        assert!(said.contains("unknown stage kind `blackhol`"), "{command:?}: {said}");
    }
    assert!(!home.path("data").exists(), "nothing was started");
}

#[test]
fn nobody_there_is_5() {
    let home = home!().with(PIPELINE);
    for command in [&["stop"][..], &["reload"], &["tap", "p", "generate"], &["top", "--once"]] {
        let said = home.run(command).refused(5);
        assert!(said.contains("no courant is running here"), "{command:?}: {said}");
    }
}

#[test]
fn commands_for_a_running_process_find_it_although_its_file_is_broken() {
    let home = home!().with(PIPELINE);
    let mut process = home.start(&[]);
    home.configure("[[pipeline");
    let ended = home.run(&["top", "--once", "--every", "10ms"]);
    for told in ["`courant check` shows how", "folder is taken to be `data`", "socket `data/admin.sock`"] {
        assert!(ended.stderr.contains(told), "{}", ended.stderr);
    }
    assert!(ended.ok().contains("blackhole"));
    home.run(&["stop"]).ok();
    assert_eq!(process.wait(LIMIT), Some(0));
    home.replace_config("runtime = { data_dir = 'elsewhere' }\n[[pipelin]]\n");
    let said = home.run(&["reload"]).refused(5);
    assert!(said.contains("taken to be `elsewhere`, and its admin socket `elsewhere/admin.sock`"), "{said}");
}

#[test]
fn commands_for_a_running_process_leave_its_tests_alone() {
    let home = home!().with(PIPELINE);
    let mut process = home.start(&[]);
    home.write("pipelines.test.toml", "[[test");
    let ended = home.run(&["top", "--once", "--every", "10ms"]);
    assert_eq!(ended.stderr, "");
    assert!(ended.ok().contains("blackhole"));
    home.configure("[[pipeline");
    home.run(&["dead-letters", "list"]).ok();
    home.run(&["stop"]).ok();
    assert_eq!(process.wait(LIMIT), Some(0));
}

#[test]
fn a_file_that_is_named_must_be_there() {
    let home = home!();
    for command in [
        &["stop"][..],
        &["top", "--once"],
        &["tap", "p", "generate"],
        &["dead-letters", "list"],
        &["dead-letters", "discard", "p", "dl_1"],
        &["positions", "forget", "p"],
        &["data", "restore", "copy"],
    ] {
        let said = home.run(&[&["-c", "other.toml"], command].concat()).refused(3);
        assert!(said.contains("there is no `other.toml`"), "{command:?}: {said}");
    }
    // Without any file the defaults hold.
    home.run(&["stop"]).refused(5);
    assert_eq!(home.run(&["dead-letters", "list"]).ok(), "no dead letters\n");
}

/// Whether `courant run` fails with 1, telling why.
#[track_caller]
fn does_not_start(home: &Home, arguments: &[&str], why: &[&str]) {
    let said = home.run(&[&["run"], arguments].concat()).refused(1);
    for part in why {
        assert!(said.contains(part), "{said}");
    }
}

#[test]
fn a_missing_file_is_told_with_a_first_pipeline_to_write() {
    let home = home!();
    does_not_start(&home, &[], &["there is no `pipelines.toml` here", "[[pipeline]]", "--config"]);
    let said = home.run(&["run"]).stderr;
    let first: String =
        said.lines().skip_while(|line| !line.contains("[[pipeline]]")).collect::<Vec<_>>().join("\n");
    home.write("pipelines.toml", first);
    home.run(&["check"]).ok();
}

#[test]
fn a_second_process_in_the_same_folder_is_refused_and_the_first_goes_on() {
    let home = home!().with(PIPELINE);
    let mut process = home.start(&[]);
    does_not_start(&home, &[], &["another courant is running", "data/admin.sock", "courant stop"]);
    process.wait_state("p", "running");
    assert_eq!(process.stop(), Some(0));
    home.start(&[]).wait_state("p", "running");
}

#[test]
fn of_several_that_start_at_once_one_runs() {
    let home = home!().with(PIPELINE);
    home.start(&[]).kill(); // a dead socket is in the way of all of them
    let mut running: Vec<Courant> = (0..6).map(|_| home.launch(&[])).collect();
    until("one that is left", LIMIT, || {
        running.retain_mut(|process| {
            let runs = process.is_running();
            assert!(runs || process.wait(LIMIT) == Some(1), "{}", process.stderr());
            runs
        });
        (running.len() < 2).then_some(())
    });
    running[0].wait_state("p", "running");
    assert!(home.run(&["top", "--once", "--every", "10ms"]).ok().contains("running"), "it has the socket");
}

#[test]
fn a_folder_left_by_a_killed_process_is_taken_over() {
    let home = home!().with(PIPELINE);
    home.start(&[]).kill();
    assert!(home.path("data/admin.sock").exists());
    home.run(&["reload"]).refused(5);
    home.start(&[]).wait_state("p", "running");
}

#[test]
fn a_data_folder_that_cannot_be_made_is_named() {
    let home = home!();
    // Also for root, whom permissions do not stop.
    home.write("in-the-way", "");
    home.replace_config(&format!("runtime = {{ data_dir = 'in-the-way/data' }}\n{PIPELINE}"));
    does_not_start(&home, &[], &["cannot create the data folder `in-the-way/data`", "Not a directory"]);
}

#[test]
fn a_port_in_use_is_named_and_the_folder_is_free_again() {
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = other.local_addr().unwrap();
    let home = home!();
    home.replace_config(&format!("edge = {{ listen = '{address}' }}\n{PIPELINE}"));
    does_not_start(&home, &[], &[&format!("cannot listen on {address}"), "in use", "`edge.listen`"]);
    drop(other);
    home.start(&[]).wait_state("p", "running");
}

#[test]
fn only_names_pipelines_of_the_file() {
    let home = home!().with(&(PIPELINE.to_owned() + &PIPELINE.replace("\"p\"", "\"q\"")));
    does_not_start(&home, &["--only", "r"], &["--only names `r`", "p, q"]);
    let mut process = home.start(&["--only", "q"]);
    assert!(process.health("q").is_some() && process.health("p").is_none());
}

#[test]
fn without_the_edge_nothing_listens() {
    let home = home!().with(PIPELINE);
    let mut process = home.launch(&["--without-edge"]);
    process.wait_logged("state=\"running\"");
    assert!(!process.has_logged("listening"));
    assert_eq!(process.stop(), Some(0));
}

#[test]
fn the_environment_overrides_the_file() {
    let home = home!().with(PIPELINE);
    let mut command = home.command(&["run"]);
    command.env("COURANT_RUNTIME__DATA_DIR", "elsewhere").env("COURANT_LOGGING__FORMAT", "json");
    let mut process = Courant::spawn(command);
    process.wait_logged(r#""state":"running""#);
    assert_eq!(process.stop(), Some(0));
    assert!(home.path("elsewhere/positions").exists() && !home.path("data").exists());
    for line in process.stderr().lines() {
        serde_json::from_str::<serde_json::Value>(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    }
}

#[test]
fn a_position_can_be_forgotten_while_nobody_runs() {
    let home = home!().with(&PIPELINE.replace("rate = 100", "count = 30"));
    home.run(&["run", "--until-finished"]).ok();
    assert_eq!(
        home.run(&["positions", "list"]).ok().split_whitespace().collect::<Vec<_>>(),
        ["p", "generate", "0:30"]
    );
    let mut process = home.start(&[]);
    let said = home.run(&["positions", "forget", "p"]).refused(1);
    assert!(said.contains("stop it first"), "{said}");
    assert_eq!(process.stop(), Some(0));
    home.run(&["positions", "forget", "p"]).ok();
    assert_eq!(home.position("p"), None);
    let said = home.run(&["positions", "forget", "p"]).refused(1);
    assert!(said.contains("has kept no position"), "{said}");
    home.run(&["run", "--until-finished"]).ok();
    assert_eq!(home.position("p"), Some(30));
}
