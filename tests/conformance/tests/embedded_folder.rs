//! The folder of the embedded engine belongs to one process, and may fill up.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use courant_conformance::crash::{Model, Writer};
use courant_connectors::embedded::{Engine, OpenError, Options};
use tokio::process::Command;

fn writer(folder: &Path, model: &Model) -> Writer {
    let mut command = Command::new(env!("CARGO_BIN_EXE_crash_writer"));
    command.arg(folder).args([model.next_round().to_string(), "1".to_owned()]).stderr(Stdio::piped());
    Writer::start(&mut command)
}

fn assert_in_use(refused: Result<std::sync::Arc<Engine>, OpenError>, folder: &Path) {
    let error = refused.err().expect("a folder in use is refused");
    assert!(matches!(error, OpenError::InUse { .. }), "{error:?}");
    let message = error.to_string();
    assert!(message.contains(&folder.display().to_string()) && message.contains("stop it"), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_is_open_once() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let engine = Engine::open(folder, Options::default()).await.unwrap();
    assert_in_use(Engine::open(folder, Options::default()).await, folder);
    engine.close().await;
    assert_in_use(Engine::open(folder, Options::default()).await, folder);
    drop(engine);
    drop(Engine::open(folder, Options::default()).await.expect("it was closed"));

    let mut model = Model::default();
    let mut other = writer(folder, &model);
    other.hear(&mut model, 50).await;
    assert_in_use(Engine::open(folder, Options::default()).await, folder);
    other.hear(&mut model, 50).await;
    other.kill(&mut model).await;
    model.verify(folder).await;
}

/// The folder as a process leaves it that is killed while it makes it, at every step: it is made again, and opened.
#[tokio::test(flavor = "multi_thread")]
async fn a_folder_that_was_not_made_to_its_end_is_made_again() {
    type Step = fn(&Path);
    let steps: [Step; 5] = [
        |folder| drop(File::create_new(folder.join("lock")).unwrap()),
        |folder| fs::create_dir(folder.join("keyspaces")).unwrap(),
        |folder| drop(File::create_new(folder.join("0.jnl")).unwrap()),
        |folder| File::options().write(true).open(folder.join("0.jnl")).unwrap().set_len(64 << 20).unwrap(),
        |folder| drop(File::create_new(folder.join("version")).unwrap()),
    ];
    for killed_after in 0..=steps.len() {
        let folder = tempfile::tempdir().unwrap();
        steps[..killed_after].iter().for_each(|step| step(folder.path()));
        for _ in 0..2 {
            let opened = Engine::open(folder.path(), Options::default()).await;
            opened.unwrap_or_else(|error| panic!("killed after {killed_after}: {error}")).close().await;
        }
    }
}

/// What was written is not taken for a folder that was never made.
#[tokio::test(flavor = "multi_thread")]
async fn a_folder_that_has_lost_its_version_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    Engine::open(folder.path(), Options::default()).await.unwrap().close().await;
    fs::remove_file(folder.path().join("version")).unwrap();
    let refused = Engine::open(folder.path(), Options::default()).await.err().unwrap();
    assert!(matches!(refused, OpenError::Damaged { .. }), "{refused:?}");
    assert!(refused.to_string().contains("'version' is missing"), "{refused}");
    assert!(folder.path().join("0.jnl").exists(), "what is refused stays as it is");
}

/// A file system of its own in memory, gone when dropped.
struct SmallDisk(PathBuf);

impl SmallDisk {
    async fn mount(at: &Path, mebibytes: u32) -> Self {
        let disk = Self(at.to_owned());
        disk.mount_with(&format!("size={mebibytes}m")).await;
        disk
    }

    async fn grow(&self, mebibytes: u32) {
        self.mount_with(&format!("remount,size={mebibytes}m")).await;
    }

    async fn mount_with(&self, options: &str) {
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", options, "courant-test"]).arg(&self.0);
        let mounted = mount.status().await.expect("there is a mount command");
        assert!(mounted.success(), "a small file system cannot be made; run the tests as root");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // a failed test must not leave it behind either
        let _ = std::process::Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

/// It says so and names the folder, has kept what it acknowledged, and goes on when there is room again.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_loses_nothing() {
    let place = tempfile::tempdir().unwrap();
    let mut mebibytes = 6;
    let disk = SmallDisk::mount(place.path(), mebibytes).await;
    let folder = place.path().join("data");
    let mut model = Model::default();
    for _ in 0..3 {
        let words = writer(&folder, &model).last_words(&mut model).await;
        let failed = format!("'{}' failed", folder.display());
        assert!(words.contains(&failed), "{words}");
        assert!(words.contains("No space left") || words.contains("in the background"), "{words}");
        mebibytes += 6;
        disk.grow(mebibytes).await;
        model.verify(&folder).await;
    }
    disk.grow(mebibytes + 200).await;
    let mut writer = writer(&folder, &model);
    writer.hear(&mut model, 2000).await;
    writer.kill(&mut model).await;
    model.verify(&folder).await;
}
