use std::path::Path;

use metrics_exporter_prometheus::PrometheusBuilder;

use super::*;
use crate::app::open_host;
use crate::settings::RuntimeConfig;

const PIPELINE: &str = "[[pipeline]]\nname = 'p'\nstage = [{ kind = 'generate', params = { rate = 1 } }, { kind = 'blackhole' }]\n";

/// A process whose file is in a folder, and its data too.
async fn app(folder: &Path, only: &[&str]) -> App {
    let file = folder.join("pipelines.toml");
    let loaded = settings::loader().load(&file, []).unwrap();
    let config = RuntimeConfig { data_dir: folder.join("data"), ..RuntimeConfig::default() };
    let runtime = Runtime::new(open_host(&config).await.unwrap());
    let metrics = PrometheusBuilder::new().build_recorder().handle();
    let only = only.iter().map(|name| (*name).to_owned()).collect();
    let app = App::new(file, only, runtime, metrics, &loaded);
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
