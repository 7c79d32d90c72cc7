use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use courant_connectors::files::dead_letters::NewLetter;
use courant_pipeline::Services;
use courant_pipeline::config::Loader;
use courant_stages::host::PositionFiles;

use super::*;

/// `odd` ones fail again, wherever they come from.
const PIPELINE: &str = r#"
[[pipeline]]
name = "p"
[[pipeline.stage]]
kind = "generate"
[[pipeline.stage]]
kind = "map"
name = "first"
params = { expr = 'if . == "odd" then error("still odd") else . end' }
[[pipeline.stage]]
kind = "blackhole"
"#;

/// So many that the first have failed again before the last are read.
const LETTERS: usize = 4000;

async fn host(folder: &Path) -> Host {
    let dead_letters = Arc::new(DeadLetterStore::open(folder.join("dead-letters")).await.unwrap());
    Host {
        services: Services::default().with(Arc::clone(&dead_letters)),
        dead_letters,
        positions: Arc::new(PositionFiles::open(folder.join("positions")).await.unwrap()),
        drain_deadline: Duration::from_secs(10),
    }
}

fn topologies(host: &Host) -> Vec<Topology> {
    let loader = Loader::new(courant_stages::registry(), host.services.clone());
    loader.load_str("pipelines.toml", PIPELINE, []).unwrap().topologies
}

fn journal(host: &Host) -> DeadLetterJournal {
    host.services.get::<DeadLetterStore>().unwrap().journal().clone()
}

fn letter(payload: &'static str) -> NewLetter {
    NewLetter {
        pipeline: "p".into(),
        stage: "first".into(),
        class: "reject".into(),
        error: "odd".into(),
        attempts: 1,
        failed_at: 0,
        key: None,
        headers: BTreeMap::new(),
        payload: payload.into(),
    }
}

fn all_of(queue: &str) -> Request {
    Request { queue: queue.into(), ids: Vec::new() }
}

#[tokio::test]
async fn every_letter_is_run_once_whatever_the_clock_said() {
    let folder = tempfile::tempdir().unwrap();
    let host = host(folder.path()).await;
    let journal = journal(&host);
    let payloads = [r#""odd""#, r#""even""#].into_iter().cycle().take(LETTERS);
    let ids = journal.append("p", payloads.map(letter).collect()).await.unwrap();
    // The clock was set back after the first, and again later on.
    let file = folder.path().join("dead-letters/p.jsonl");
    let mut content = std::fs::read_to_string(&file).unwrap();
    content = content.replace(&ids[0], "dl_7ZZZZZZZZZZZZZZZZZZZZZZZZZ");
    content = content.replace(&ids[2], "dl_00000000000000000000000000");
    std::fs::write(&file, content).unwrap();

    let stop = CancellationToken::new();
    let topologies = topologies(&host);
    let request = all_of("p");
    let run = redrive(&topologies, &host, &request, &stop);
    let redriven = tokio::time::timeout(Duration::from_secs(60), run).await.expect("it ends").unwrap();
    let half = LETTERS as u64 / 2;
    assert_eq!((redriven.dispositions.delivered, redriven.dispositions.dead_lettered), (half, half));
    let left = journal.list(Some("p"), LETTERS).await.unwrap();
    assert_eq!(left.len() as u64, half, "those that failed again, as new letters");
    assert!(left.iter().all(|stored| stored.letter.error.contains("still odd")));
}

#[tokio::test]
async fn chosen_letters_are_run_and_unknown_ones_named() {
    let folder = tempfile::tempdir().unwrap();
    let host = host(folder.path()).await;
    let journal = journal(&host);
    let ids = journal.append("p", vec![letter("1"), letter("2"), letter("3")]).await.unwrap();
    let stop = CancellationToken::new();
    let chosen = Request { queue: "p".into(), ids: vec![ids[2].clone(), ids[0].clone()] };
    assert_eq!(redrive(&topologies(&host), &host, &chosen, &stop).await.unwrap().letters, 2);
    assert_eq!(journal.list(Some("p"), 9).await.unwrap()[0].id, ids[1]);
    let error = redrive(&topologies(&host), &host, &chosen, &stop).await.unwrap_err().to_string();
    assert!(error.contains(&format!("{}, {}", ids[2], ids[0])), "{error}");
}

#[tokio::test]
async fn a_stopped_redrive_says_so_and_leaves_the_rest() {
    let folder = tempfile::tempdir().unwrap();
    let host = host(folder.path()).await;
    let journal = journal(&host);
    journal.append("p", vec![letter("1"); 3]).await.unwrap();
    let stop = CancellationToken::new();
    stop.cancel();
    let error = redrive(&topologies(&host), &host, &all_of("p"), &stop).await.unwrap_err().to_string();
    assert!(error.contains("stopped after 0 letters"), "{error}");
    assert_eq!(journal.list(Some("p"), 9).await.unwrap().len(), 3);
}

#[tokio::test]
async fn an_unknown_queue_is_a_mistake_and_an_empty_one_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let host = host(folder.path()).await;
    let (journal, topologies) = (journal(&host), topologies(&host));
    let stop = CancellationToken::new();
    let redriven = async |queue: &str| redrive(&topologies, &host, &all_of(queue), &stop).await;
    assert_eq!(redriven("p").await.unwrap(), Redriven::default(), "a stage names it");
    let error = redriven("typo").await.unwrap_err().to_string();
    assert_eq!(error, "there is no queue `typo`; no letters wait in any");

    let ids = journal.append("other", vec![letter("1")]).await.unwrap();
    journal.append("p", vec![letter("1")]).await.unwrap();
    let error = redriven("typo").await.unwrap_err().to_string();
    assert_eq!(error, "there is no queue `typo`; letters wait in: other, p");
    journal.settle("other", ids).await.unwrap();
    assert_eq!(redriven("other").await.unwrap(), Redriven::default(), "it has had letters");
    let error = redriven("typo").await.unwrap_err().to_string();
    assert!(error.ends_with("letters wait in: p"), "{error}");
}
