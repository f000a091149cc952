//! `tombolo mount nfs://…`, from the view of users and mount(8). Needs /dev/fuse and the right to mount.

use std::fs;
use std::time::{Duration, Instant};

use crate::common::far::Far;
use crate::common::{Ran, is_mounted, numbers, signal, until};

impl Far {
    fn mount(&self, options: &str) {
        self.run(format!("mount {} mnt -o {options}", self.url(""))).succeeded();
    }

    fn read(&self, name: &str) -> std::io::Result<String> {
        fs::read_to_string(self.place.mnt().join(name))
    }

    fn in_flight(&self) -> u64 {
        let clients = &self.place.top()["nfs_clients"];
        let (_, client) = clients.as_object().and_then(|all| all.iter().next()).expect("a client");
        client["in_flight"].as_u64().expect("a number")
    }
}

#[test]
fn an_export_is_mounted_used_and_gone() {
    let Some(served) = Far::new() else { return };
    let before = served.listing();
    for options in ["allow_other", "proto=udp,noperm,allow_other", "noac,nconnect=4,rsize=4k,wsize=4k"] {
        served.mount(options);
        assert_eq!(served.read("file").expect("read"), "content\n", "{options}");
        let large = numbers();
        fs::write(served.place.mnt().join("new"), large).expect("write");
        assert!(fs::read_to_string(served.path("tree/new")).expect("read") == large, "{options}");
        assert!(served.read("new").expect("read") == large, "{options}");
        let names = fs::read_dir(served.place.mnt()).expect("list").count();
        assert_eq!(names, 2, "{options}");
        fs::remove_file(served.place.mnt().join("new")).expect("remove");
        served.place.umount();
        assert!(!is_mounted(&served.place.mnt()));
    }
    assert_eq!(served.listing(), before);
    until("the supervisors have ended", || !served.place.is_served());
}

#[test]
fn mount_accepts_directory_below_export() {
    let Some(served) = Far::new() else { return };
    fs::create_dir(served.path("tree/a b")).expect("mkdir");
    fs::write(served.path("tree/a b/inside"), "x").expect("write");
    served.run(format!("mount {} mnt", served.url("/a%20b?soft"))).succeeded();
    assert_eq!(served.read("inside").expect("read"), "x");
    let table = fs::read_to_string("/proc/self/mounts").expect("proc");
    let mnt = served.text("mnt");
    let line = table.lines().find(|line| line.contains(&mnt)).expect("the mount");
    assert!(line.starts_with(&format!("{}:/tree/a\\040b ", served.address.ip())), "{line}");
    served.place.umount();
}

#[test]
fn in_flight_limit_is_shown_and_tunable() {
    let Some(served) = Far::new() else { return };
    served.mount("inflight=7");
    served.read("file").expect("read");
    assert_eq!(served.in_flight(), 7);
    served.run("tune mnt inflight=32").succeeded();
    assert_eq!(served.in_flight(), 32);
    served.run("top --once").says(&["in-flight limit 32", "retransmitted 0"]);
    served.run("tune mnt inflight=auto").succeeded();
    served.run("tune mnt inflight=0").failed(2, &["auto or a number from 1"]);
    served.run("tune mnt rsize=4k").failed(2, &["rsize=4k", "inflight=N|auto"]);
    served.run("tune tree inflight=1").failed(1, &["nothing is mounted there"]);
    served.place.umount();
    served.place.mount("ro");
    served.run("tune mnt inflight=1").failed(1, &["nothing to tune"]);
    served.place.umount();
}

#[test]
fn failed_mounts_are_reported_soon_in_one_line() {
    let Some(served) = Far::new() else { return };
    let fails = |url: &str, options: &str, code: i32, words: &[&str]| {
        let begun = Instant::now();
        served.run(format!("mount {url} mnt -o {options}")).failed(code, words);
        assert!(begun.elapsed() < Duration::from_secs(5), "{url}: {:?}", begun.elapsed());
    };
    fails("nfs://127.0.0.1:1/tree", "hard,retry=0", 1, &["127.0.0.1:1", "refused"]);
    fails("nfs://no-such-host.invalid/tree", "hard", 1, &["no-such-host.invalid"]);
    fails(&served.location("/other"), "hard", 1, &["/other", "no such export"]);
    fails(&served.url("/file"), "hard", 1, &["not a directory"]);
    fails("nfs:///tree", "hard", 2, &["the host is missing"]);
    fails("nfs://host", "hard", 2, &["the name is missing"]);
    fails("http://host/tree", "hard", 2, &["unknown scheme http://"]);
    fails("/tree", "hard", 2, &["is not a valid source"]);
    fails("dir:tree", "ro,soft,rsize=4k", 2, &["soft,rsize=4k", "for servers"]);
    fails(&served.url(""), "submounts=hide", 2, &["submounts"]);
    fails(&served.url(""), "vers=4", 2, &["only version 3"]);
    assert!(!is_mounted(&served.place.mnt()) && !served.place.is_served());
}

#[test]
fn a_server_that_comes_back_is_waited_for() {
    let Some(mut served) = Far::new() else { return };
    served.mount("hard,timeo=10,noac");
    served.stop_origin();
    let file = served.place.mnt().join("file");
    let reader = std::thread::spawn(move || fs::read_to_string(file));
    std::thread::sleep(Duration::from_secs(1));
    assert!(!reader.is_finished(), "it waits");
    served.start_origin();
    assert_eq!(reader.join().expect("joined").expect("read"), "content\n");
    served.place.umount();
}

#[test]
fn mount_retries_absent_server_for_retry_time() {
    let Some(mut served) = Far::new() else { return };
    served.stop_origin();
    for options in ["soft", "hard,retry=1"] {
        let mount = served.tombolo(format!("mount {} mnt -o {options}", served.url("")));
        let mounting = std::thread::spawn(move || Ran::new(mount));
        std::thread::sleep(Duration::from_secs(3));
        assert!(!mounting.is_finished(), "{options}: it waits");
        served.start_origin();
        let ran = mounting.join().expect("joined");
        let minutes = if options == "soft" { "2 minutes" } else { "a minute" };
        assert_eq!((ran.code, ran.err.lines().count()), (Some(0), 1), "{ran:?}");
        assert!(ran.err.contains("refused") && ran.err.contains(minutes), "{ran:?}");
        assert_eq!(served.read("file").expect("read"), "content\n");
        served.place.umount();
        served.stop_origin();
    }
}

#[test]
fn unresponsive_server_is_logged_once_each_way() {
    let Some(served) = Far::new() else { return };
    served.mount("hard,noac");
    let told = |words: &str| served.log().matches(words).count();
    let top = || served.run("top --once").out;
    let at = served.address.to_string();
    served.origin.as_ref().expect("it runs").signal("STOP");
    let file = served.place.mnt().join("file");
    let reader = std::thread::spawn(move || fs::read_to_string(file));
    until("it is in the log", || told(&format!("server {at} not responding, still trying")) == 1);
    assert!(top().contains("SERVER NOT RESPONDING for "), "{}", top());
    std::thread::sleep(Duration::from_secs(1));
    served.origin.as_ref().expect("it runs").signal("CONT");
    assert_eq!(reader.join().expect("joined").expect("read"), "content\n");
    until("it is in the log", || told(&format!("server {at} OK")) == 1);
    assert_eq!(told("not responding"), 1);
    assert!(!top().contains("NOT RESPONDING"), "{}", top());
    served.place.umount();
}

#[test]
fn a_mount_goes_on_trying_in_the_background() {
    let Some(mut served) = Far::new() else { return };
    served.stop_origin();
    let ran = served.run(format!("mount {} mnt -o bg", served.url("")));
    assert_eq!((ran.code, ran.err.lines().count()), (Some(0), 1), "{ran:?}");
    assert!(ran.err.contains("in the background for 10000 minutes"), "{ran:?}");
    assert!(!is_mounted(&served.place.mnt()));
    served.start_origin();
    until("it is mounted", || served.read("file").is_ok());
    served.place.umount();
    until("all have ended", || !served.place.is_served());
    // Permanent failures are reported at once.
    let ran = served.run(format!("mount {} mnt -o bg", served.location("/none")));
    ran.failed(1, &["no such export"]);
}

#[test]
fn a_soft_mount_gives_up() {
    let Some(mut served) = Far::new() else { return };
    served.mount("soft,timeo=5,retrans=1,noac");
    served.stop_origin();
    let begun = Instant::now();
    let error = served.read("file").expect_err("no server answers");
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    assert!(error.raw_os_error().is_some(), "{error}");
    served.place.umount();
}

#[test]
fn killed_mount_restarts_while_server_is_absent() {
    let Some(mut served) = Far::new() else { return };
    served.mount("allow_other");
    let killed = served.place.server_pid();
    served.stop_origin();
    signal(killed, "KILL");
    std::thread::sleep(Duration::from_secs(1));
    served.start_origin();
    until("the file is there again", || served.read("file").is_ok());
    assert_ne!(served.place.server_pid(), killed);
    served.place.umount();
    until("all have ended", || !served.place.is_served());
}

#[test]
fn without_attributes_kept_every_change_is_seen() {
    let Some(served) = Far::new() else { return };
    served.mount("noac");
    for round in 0..20 {
        let text = "x".repeat(round);
        fs::write(served.path("tree/file"), &text).expect("write");
        assert_eq!(served.read("file").expect("read"), text);
        let size = fs::metadata(served.place.mnt().join("file")).expect("stat").len();
        assert_eq!(size, round as u64);
    }
    served.place.umount();
}

#[test]
fn mount_8_mounts_a_server_through_the_helper() {
    let Some(served) = Far::new() else { return };
    let options = format!("rw,_netdev,nofail,port={},vers=3,nolock,hard", served.address.port());
    let host = served.address.ip();
    served.run_mount_helper(format!("{host}:/tree mnt -o {options}")).succeeded();
    assert_eq!(served.read("file").expect("read"), "content\n");
    served.place.umount();
    served.run_mount_helper(format!("{host}:/none mnt -o {options}")).failed(32, &["no such export"]);
}
