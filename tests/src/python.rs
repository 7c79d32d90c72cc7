//! Python with the programs that data people read Parquet files with, as our own reader proves nothing about others.

use std::path::{Path, PathBuf};
use std::process::Command;

/// What is installed. Another list gets another folder.
const PACKAGES: [&str; 3] = ["duckdb==1.4.1", "pandas==2.3.3", "pyarrow==21.0.0"];
const FOLDER: &str = "python-1";

/// An interpreter that has them: set up once, outside the checkout, and used again by every later run.
pub fn python() -> PathBuf {
    let of_user = || Path::new(&std::env::var_os("HOME").expect("a user has a home")).join(".cache/courant");
    let cache = std::env::var_os("COURANT_CACHE").map_or_else(of_user, PathBuf::from);
    let (folder, done) = (cache.join(FOLDER), cache.join(FOLDER).join("complete"));
    let python = folder.join("bin/python");
    if !done.exists() {
        let folder = folder.to_str().expect("the cache folder's name is text");
        run(Command::new("python3").args(["-m", "venv", "--clear", folder]));
        run(Command::new(&python).args(["-m", "pip", "install", "--quiet"]).args(PACKAGES));
        std::fs::write(&done, "").expect("the cache folder can be written to");
    }
    python
}

fn run(command: &mut Command) {
    let ended =
        command.output().unwrap_or_else(|error| panic!("{command:?}: {error}; install python3 with venv"));
    assert!(ended.status.success(), "{command:?}: {}", String::from_utf8_lossy(&ended.stderr));
}
