//! Writes to the embedded engine until it is killed: see [`courant_conformance::crash`].

#[tokio::main(flavor = "multi_thread", worker_threads = 4)]
async fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut next = || arguments.next().expect("usage: crash_writer FOLDER ROUND SEED");
    let folder = next();
    let mut number = || next().parse().expect("a number");
    let (round, seed) = (number(), number());
    courant_conformance::crash::write_until_killed(folder.as_ref(), round, seed).await;
}
