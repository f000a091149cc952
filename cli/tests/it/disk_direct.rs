//! A direct-I/O disk whose server is killed with transfers in the kernel: the block device stalls because its
//! file is on a mount with a stopped server.

use std::fs;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{MountPlace, PATIENCE, signal, until};
use crate::disk::{IN, OUT, ask, guest, next_child};

struct SlowDisk {
    place: MountPlace,
    device: String,
    server: u32,
}

impl SlowDisk {
    fn new() -> Option<Self> {
        let place = MountPlace::new()?;
        place.sparse("tree/backing", 1 << 20);
        place.mount("allow_other");
        let mut losetup = Command::new("losetup");
        losetup.args(["--direct-io=on", "--find", "--show"]).arg(place.mnt().join("backing"));
        let made = losetup.output().expect("losetup(8)");
        if !made.status.success() {
            tombolo_skip::skip!("there are no loop devices: {made:?}");
        }
        let device = String::from_utf8(made.stdout).expect("a path").trim().to_owned();
        let server = place.server_pid();
        Some(Self { place, device, server })
    }

    fn stall(&self) {
        signal(self.server, "STOP");
        // Each thread stops when it handles the signal.
        until("it is stopped", || self.is_stopped());
    }

    fn is_stopped(&self) -> bool {
        let threads = fs::read_dir(format!("/proc/{}/task", self.server)).expect("threads");
        let mut threads =
            threads.filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("status")).ok());
        threads.all(|status| status.lines().any(|line| line.starts_with("State:\tT")))
    }

    fn go_on(&self) {
        signal(self.server, "CONT");
    }

    /// Returns `true` while the kernel has an unfinished write for it.
    fn is_written_to(&self) -> bool {
        let name = self.device.trim_start_matches("/dev/");
        let under_way = fs::read_to_string(format!("/sys/block/{name}/inflight")).expect("a count");
        under_way.split_whitespace().nth(1).is_some_and(|writes| writes != "0")
    }
}

impl Drop for SlowDisk {
    fn drop(&mut self) {
        self.go_on();
        let _ = Command::new("losetup").args(["--detach", &self.device]).status();
    }
}

fn the_next_server_waits(is_kept: bool) {
    let Some(disk) = SlowDisk::new() else { return };
    let scratch = &disk.place.0;
    let words = format!("disk {} --cache none --vhost-user vm.sock --control disk.sock", disk.device);
    let keep = if is_kept { "--keep" } else { "" };
    let mut first = scratch.serve(format!("{words} {keep}"));
    let (mut driver, mut queue) = guest(scratch);
    assert_eq!(ask(&mut queue, OUT, 8, &[1; 4096]).1, 0);
    disk.stall();
    let [head, body, status] = [16, 4096, 1].map(|len| queue.alloc(len).expect("guest memory"));
    queue.write(head, &(u128::from(OUT) | 8 << 64).to_le_bytes());
    queue.write(body, &[2; 4096]);
    queue.submit(&[head.readable(), body.readable(), status.writable()]).expect("room");
    until("it is written to", || disk.is_written_to());
    if is_kept {
        signal(next_child(first.pid(), &[]), "KILL");
    } else {
        first.signal("KILL");
        first.wait();
    }
    let later = thread::scope(|scope| {
        let next = scope.spawn(|| match is_kept {
            true => driver.config(0, 8).map(|_| None).expect("the size"),
            false => Some(scratch.serve(&words)),
        });
        // Long enough for a server to start on a busy machine.
        let end = Instant::now() + Duration::from_secs(2);
        while !next.is_finished() && Instant::now() < end {
            thread::sleep(Duration::from_millis(10));
        }
        let is_early = next.is_finished();
        disk.go_on();
        assert!(!is_early, "another server serves while a transfer of the one before is under way");
        next.join().expect("served at last")
    });
    if is_kept {
        queue.wait_used(PATIENCE).expect("an answer");
    }
    let (_other, mut other_queue) = if is_kept { (driver, queue) } else { guest(scratch) };
    assert_eq!(ask(&mut other_queue, IN, 8, &[0; 4096]), (vec![2; 4096], 0));
    later.unwrap_or(first).stop();
}

#[test]
fn next_direct_server_waits_for_killed_servers_writes() {
    the_next_server_waits(false);
}

#[test]
fn next_kept_direct_server_waits_too() {
    the_next_server_waits(true);
}
