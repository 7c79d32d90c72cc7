//! `redis-server` as a child process: on a free port, in a folder of its own, without persistence.

use std::collections::BTreeSet;
use std::ops::Range;
use std::process::{Child, Command, Stdio};

use redis::{Client, Cmd, FromRedisValue, cmd};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::free_port;
use crate::{LIMIT, until};

const NODES: u16 = 3;
const SLOTS: u16 = 16384;
/// Another process may take a free port between finding it and using it.
const STARTS: usize = 5;

/// One server; killed when dropped.
pub struct RedisServer {
    child: Child,
    port: u16,
    /// Where it talks to the other nodes of a cluster, if it is one.
    bus_port: Option<u16>,
    folder: TempDir,
}

impl RedisServer {
    pub fn start() -> Self {
        Self::start_as(|| None)
    }

    fn start_node() -> Self {
        Self::start_as(|| Some(free_port()))
    }

    fn start_as(bus_port: impl Fn() -> Option<u16>) -> Self {
        let mut log = String::new();
        for _ in 0..STARTS {
            let folder = tempfile::tempdir().expect("a temporary folder can be made");
            let (port, bus_port) = (free_port(), bus_port());
            let mut server = Self { child: spawn(port, bus_port, &folder), port, bus_port, folder };
            if server.is_up() {
                return server;
            }
            log = std::fs::read_to_string(server.folder.path().join("log")).unwrap_or_default();
        }
        panic!("redis-server ended {STARTS} times while starting; its log:\n{log}");
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Ends it without warning; everything it knew is gone.
    pub fn kill(&mut self) {
        self.child.kill().expect("a child can be killed");
        self.child.wait().expect("a child can be waited for");
    }

    /// Kills it if it runs, and starts it on the same port.
    pub fn restart(&mut self) {
        self.kill();
        self.child = spawn(self.port, self.bus_port, &self.folder);
        assert!(self.is_up(), "redis-server does not start again on port {}", self.port);
    }

    /// It keeps its connections and answers nothing.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Forgets every key.
    pub fn wipe(&self) {
        self.ask::<()>(&cmd("FLUSHALL"));
    }

    /// The members of a set; none if there is no such key.
    pub fn set(&self, key: &str) -> BTreeSet<String> {
        self.ask(cmd("SMEMBERS").arg(key))
    }

    /// Looks behind the connector's back.
    ///
    /// # Panics
    /// If the server refuses.
    pub fn ask<T: FromRedisValue>(&self, command: &Cmd) -> T {
        let mut connection = Client::open(self.url())
            .expect("the address is valid")
            .get_connection()
            .expect("redis-server runs");
        command.query(&mut connection).unwrap_or_else(|error| panic!("redis-server refuses: {error}"))
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("a child can be signalled");
    }

    /// Waits until this child, and no other server, answers on the port; false if it ends before.
    fn is_up(&mut self) -> bool {
        until("an answer of redis-server", LIMIT, || {
            if self.child.try_wait().expect("a child can be waited for").is_some() {
                return Some(false);
            }
            let mut connection = Client::open(self.url()).ok()?.get_connection().ok()?;
            let info: String = cmd("INFO").arg("server").query(&mut connection).ok()?;
            info.contains(&format!("process_id:{}\r", self.child.id())).then_some(true)
        })
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(port: u16, bus_port: Option<u16>, folder: &TempDir) -> Child {
    let mut command = Command::new("redis-server");
    command
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--logfile", "log"])
        .args(["--save", "", "--appendonly", "no"])
        .arg("--dir")
        .arg(folder.path())
        .current_dir(folder.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    if let Some(bus_port) = bus_port {
        command.args(["--cluster-enabled", "yes", "--cluster-node-timeout", "2000"]);
        command.args(["--cluster-port", &bus_port.to_string()]);
    }
    command.spawn().unwrap_or_else(|error| {
        panic!("cannot start redis-server ({error}); install the package redis-server")
    })
}

/// Three masters that share the slots.
pub struct RedisCluster {
    nodes: Vec<RedisServer>,
}

impl RedisCluster {
    pub fn start() -> Self {
        let nodes: Vec<RedisServer> = (0..NODES).map(|_| RedisServer::start_node()).collect();
        for (index, node) in (0..NODES).zip(&nodes) {
            let slots = first_slot(index)..first_slot(index + 1);
            node.ask::<()>(cmd("CLUSTER").arg("ADDSLOTSRANGE").arg(slots.start).arg(slots.end - 1));
            node.ask::<()>(cmd("CLUSTER").arg("SET-CONFIG-EPOCH").arg(index + 1));
        }
        for node in &nodes[1..] {
            let address = ("127.0.0.1", node.port, node.bus_port);
            nodes[0].ask::<()>(cmd("CLUSTER").arg("MEET").arg(address));
        }
        let cluster = Self { nodes };
        cluster.wait_whole();
        cluster
    }

    /// Of all nodes.
    pub fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(RedisServer::url).collect()
    }

    pub fn nodes(&mut self) -> &mut [RedisServer] {
        &mut self.nodes
    }

    /// The slots a node owns from the start.
    pub fn slots(&self, node: u16) -> Range<u16> {
        first_slot(node)..first_slot(node + 1)
    }

    /// The slot of a key or a channel.
    pub fn slot(&self, key: &str) -> u16 {
        self.nodes[0].ask(cmd("CLUSTER").arg("KEYSLOT").arg(key))
    }

    /// Waits until every node says that every slot is served and knows the others.
    pub fn wait_whole(&self) {
        for node in &self.nodes {
            until("a whole cluster", LIMIT, || {
                let info: String = node.ask(cmd("CLUSTER").arg("INFO"));
                let whole = ["cluster_state:ok", &format!("cluster_size:{NODES}"), "cluster_slots_ok:16384"];
                whole.iter().all(|line| info.contains(line)).then_some(())
            });
        }
    }
}

fn first_slot(node: u16) -> u16 {
    SLOTS / NODES * node + SLOTS % NODES * node / NODES
}
