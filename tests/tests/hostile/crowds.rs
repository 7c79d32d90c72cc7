//! Ten thousand connections of nobody.

use std::time::Duration;

use courant_tests::chat::{Talk, connect};
use courant_tests::raw::{connect_from, raise_open_files, upgrade_request};
use courant_tests::{Courant, LIMIT, home};
use futures::future::join_all;
use futures::stream::{self, StreamExt as _};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

use super::{address, start};

const CROWD: usize = 10_000;
/// Fewer than one address may have of the shipped settings.
const OF_EACH: usize = 500;
/// What one address may have of the shipped settings.
const PER_ADDRESS: usize = 512;
/// What a connection that has said nothing, or was refused, may cost.
const KIB_OF_EACH: u64 = 16;
/// And whatever a busy process needs besides.
const ROOM_KIB: u64 = 64 << 10;
/// When a connection is cut that has not asked for anything.
const HEADER_TIMEOUT: Duration = Duration::from_secs(15);
/// Connections that are made before the server is seen to have taken them. The system keeps more for it; beyond that it
/// lets clients believe that they are connected, and forgets them.
const AT_ONCE: usize = 500;

/// How many connections this machine lets a test and a server have; ten thousand if it can.
fn crowd() -> usize {
    let files = raise_open_files();
    let crowd = CROWD.min(files.saturating_sub(2000));
    assert!(crowd >= 1000, "{files} open files are too few to make a crowd of");
    crowd
}

/// Connects a crowd, each from the address `127.0.0.<host(n)>`.
async fn gather(courant: &mut Courant, crowd: usize, host: impl Fn(usize) -> usize) -> Vec<TcpStream> {
    let (to, client) = (address(courant), courant.client());
    let mut all = Vec::with_capacity(crowd);
    while all.len() < crowd {
        let next = all.len()..crowd.min(all.len() + AT_ONCE);
        let connecting = next.map(|n| connect_from(u8::try_from(host(n)).unwrap(), to));
        all.extend(join_all(connecting).await.into_iter().map(|stream| stream.expect("the system takes it")));
        // They are taken in the order they came, and none has to wait until the first is sent away.
        let taken = timeout(HEADER_TIMEOUT / 2, client.text("/health/live")).await;
        taken.unwrap_or_else(|_| panic!("no room was made after {}", all.len())).unwrap();
    }
    all
}

/// The `n`th of a crowd is from here.
fn host(n: usize) -> usize {
    2 + n / OF_EACH
}

/// Whether the server has ended a connection, after whatever it said.
fn has_ended(stream: &TcpStream) -> bool {
    let mut buffer = [0; 4096];
    loop {
        match stream.try_read(&mut buffer) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() != std::io::ErrorKind::WouldBlock,
        }
    }
}

fn open_of(crowd: &[TcpStream]) -> usize {
    crowd.iter().filter(|stream| !has_ended(stream)).count()
}

fn assert_costs_little(courant: &Courant, before_kib: u64, crowd: usize) {
    let (after, most) = (courant.resident_kib(), ROOM_KIB + KIB_OF_EACH * crowd as u64);
    assert!(after < before_kib + most, "{before_kib} KiB became {after}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_who_say_nothing_keep_nobody_out() {
    let home = home!().with_shipped_pipelines();
    let mut courant = start(&home, &[]);
    let mut talk = Talk::begin(&mut courant).await;
    let (crowd, before) = (crowd(), courant.resident_kib());
    let silent = talk.goes_on(gather(&mut courant, crowd, host)).await;
    let begun = Instant::now();
    let held = open_of(&silent);
    assert!(held > crowd / 2, "{held} are held: not a crowd");
    // Somebody new: signs up, signs in, connects.
    talk.goes_on(async {
        let eve = courant.person("Eve").await;
        connect(&eve).await;
    })
    .await;
    assert!(begun.elapsed() < HEADER_TIMEOUT, "they had to wait for the crowd to be sent away");
    assert_costs_little(&courant, before, crowd);
    let sent_away = async {
        while open_of(&silent) > 0 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let sent_away = timeout(HEADER_TIMEOUT * 2, talk.goes_on(sent_away)).await;
    assert!(sent_away.is_ok(), "{} who say nothing are still here", open_of(&silent));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_address_pushes_out_its_own() {
    let home = home!().with_shipped_pipelines();
    let mut courant = start(&home, &[]);
    let mut talk = Talk::begin(&mut courant).await;
    let others = gather(&mut courant, 10, |n| 2 + n).await;
    let many = crowd().min(4 * PER_ADDRESS);
    let of_one = talk.goes_on(gather(&mut courant, many, |_| 99)).await;
    let settled = async {
        while open_of(&of_one) > PER_ADDRESS {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let at_once = timeout(HEADER_TIMEOUT / 2, settled).await;
    assert!(at_once.is_ok(), "{} are open", open_of(&of_one));
    assert!(courant.metric("courant_http_cut_total", "") >= (many - PER_ADDRESS) as f64);
    assert_eq!(open_of(&others), others.len(), "nobody else is pushed out");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_upgrades_without_a_token_are_refused() {
    let home = home!().with_shipped_pipelines();
    // As shipped, but for those who talk meanwhile.
    let settings =
        [("COURANT_EDGE__LIMITS__ENABLED", "true"), ("COURANT_EDGE__LIMITS__MESSAGES", "100000/min")];
    let mut courant = start(&home, &settings);
    let mut talk = Talk::begin(&mut courant).await;
    let (crowd, before) = (crowd(), courant.resident_kib());
    let streams = gather(&mut courant, crowd, host).await;
    let asked = stream::iter(streams).map(async |mut stream| {
        let mut answer = [0; 12];
        // Who came first may have had to make room.
        let _ = stream.write_all(upgrade_request("/ws", &[]).as_bytes()).await;
        let read = timeout(LIMIT, stream.read_exact(&mut answer)).await.expect("an answer, or an end");
        (stream, read.ok().map(|_| String::from_utf8_lossy(&answer[9..]).into_owned()))
    });
    let answers: Vec<_> = talk.goes_on(asked.buffer_unordered(AT_ONCE).collect()).await;
    let of = |status: &str| answers.iter().filter(|(_, answer)| answer.as_deref() == Some(status)).count();
    let (unauthenticated, limited) = (of("401"), of("429"));
    let unanswered = answers.iter().filter(|(_, answer)| answer.is_none()).count();
    assert_eq!(unauthenticated + limited + unanswered, crowd, "nobody gets anything else");
    // A hundred and twenty a minute from each address; and a few made room.
    assert!(unauthenticated >= 100 && limited >= crowd / 2, "{unauthenticated} and {limited}");
    assert!(courant.metric("courant_ws_connections", "") <= 2.0, "the two who talk");
    assert_costs_little(&courant, before, crowd);
}
