use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use courant_pipeline::Class;
use courant_pipeline::dead_letter::DeadLetter;
use metrics_exporter_prometheus::PrometheusBuilder;

use super::*;
use crate::app::host::open_folder;
use crate::settings::RuntimeConfig;
use courant_pipeline::units::Span;

const PIPELINE: &str = "[[pipeline]]\nname = 'p'\nstage = [{ kind = 'generate', params = { rate = 1 } }, { kind = 'blackhole' }]\n";

/// A process whose file is in a folder, and its data too.
async fn app(folder: &Path, only: &[&str]) -> App {
    let file = folder.join("pipelines.toml");
    let loaded = settings::loader().load(&file, []).unwrap();
    let config = RuntimeConfig {
        data_dir: folder.join("data"),
        drain_deadline: Span(Duration::ZERO),
        ..RuntimeConfig::default()
    };
    let runtime = Runtime::new(open_folder(&config).await.unwrap());
    let metrics = PrometheusBuilder::new().build_recorder().handle();
    let only = only.iter().map(|name| (*name).to_owned()).collect();
    let app = App::new(file, only, runtime, metrics, Components::watch(None, None).await, &loaded);
    app.start(loaded).await;
    app
}

async fn has_changed(app: &App) -> bool {
    app.look_at_files().await != app.files_read()
}

#[tokio::test]
async fn mending_what_was_refused_is_a_change_and_applying_it_is_none() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("pipelines.toml", "include = ['more/*.toml']\n");
    let app = app(folder.path(), &[]).await;
    assert!(!has_changed(&app).await);

    std::fs::create_dir(folder.path().join("more")).unwrap();
    write("more/p.toml", "[[pipeline]\n");
    assert!(has_changed(&app).await, "a file that matches the pattern has come");
    assert!(app.reload_file().await.is_err());
    assert!(!has_changed(&app).await, "it was refused once, and is not tried again as it is");

    write("more/p.toml", PIPELINE);
    assert!(has_changed(&app).await, "the file that was wrong is watched");
    assert_eq!(app.reload_file().await.unwrap().started, ["p"]);
    assert!(!has_changed(&app).await, "another list of files is no further change");
    app.runtime().drain().await;
}

/// The pipeline of a version, and others that only take time to check.
fn version(version: u64, others: usize) -> String {
    let pipeline = PIPELINE.replace("rate = 1", &format!("rate = {version}"));
    let others = (0..others).map(|other| PIPELINE.replace("'p'", &format!("'other{other}'")));
    others.fold(pipeline, |all, other| all + &other)
}

/// The first reload has read a large file and is still checking it when the second one reads a small one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_reloads_at_once_the_one_that_read_last_stays() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pipelines.toml");
    let replace = |text: String| {
        std::fs::write(file.with_extension("new"), text).unwrap();
        std::fs::rename(file.with_extension("new"), &file).unwrap();
    };
    replace(version(1, 0));
    let app = Arc::new(app(folder.path(), &["p"]).await);
    for round in 1..=5 {
        let before = app.files_read();
        replace(version(2 * round, 2000));
        let first = tokio::spawn({
            let app = Arc::clone(&app);
            async move { app.reload_file().await }
        });
        while app.files_read() == before {
            tokio::task::yield_now().await;
        }
        replace(version(2 * round + 1, 0));
        app.reload_file().await.unwrap();
        first.await.unwrap().unwrap();
        let rate = &app.runtime().topologies()[0].entry.stage[0].params["rate"];
        assert_eq!(*rate, 2 * round + 1, "the file says so");
    }
    app.drain().await;
}

#[tokio::test]
async fn it_tells_what_it_was_told_to_run() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(
        folder.path().join("pipelines.toml"),
        PIPELINE.to_owned() + &PIPELINE.replace("'p'", "'q'"),
    )
    .unwrap();
    let app = app(folder.path(), &["q"]).await;
    let running = app.running().await;
    assert_eq!((running.only, running.pipelines.len()), (vec!["q".to_owned()], 1));
    app.drain().await;
}

/// A letter of a stage that is too slow for it to be run before anything else happens.
async fn slow_letter(app: &App, folder: &Path) {
    let slow = PIPELINE
        .replace("{ kind = 'blackhole' }", "{ kind = 'throttle', params = { rate = 0.001, burst = 1 } }");
    std::fs::write(folder.join("pipelines.toml"), slow).unwrap();
    app.reload_file().await.unwrap();
    let letter = DeadLetter {
        pipeline: "p".into(),
        stage: "throttle".into(),
        queue: "q".into(),
        class: Class::Reject,
        error: String::new(),
        attempts: 1,
        failed_at: 0,
        key: None,
        headers: BTreeMap::new(),
        payload: "1".into(),
    };
    app.runtime().host().dead_letters.put(vec![letter.clone(), letter]).await.unwrap();
}

#[tokio::test]
async fn one_redrive_at_a_time_and_a_drain_ends_it() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("pipelines.toml"), PIPELINE).unwrap();
    let app = Arc::new(app(folder.path(), &[]).await);
    slow_letter(&app, folder.path()).await;
    let request = Redrive { queue: "q".into(), ids: Vec::new() };
    let first = tokio::spawn({
        let (app, request) = (Arc::clone(&app), request.clone());
        async move { app.redrive(request).await }
    });
    while app.redrives.is_idle() {
        tokio::task::yield_now().await;
    }
    let second = app.redrive(request).await.unwrap_err();
    assert!(second.contains("another redrive is under way"), "{second}");
    app.runtime().apply(Vec::new()).await; // so that a drain has only the redrive to wait for
    tokio::time::timeout(Duration::from_secs(30), app.drain()).await.expect("a drain stops it");
    assert!(first.is_finished(), "a drain waits for it");
    let stopped = first.await.unwrap().unwrap_err();
    assert!(stopped.contains("stopped after"), "{stopped}");
}
