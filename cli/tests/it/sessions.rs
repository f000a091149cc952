//! Sessions added to and removed from a running proxy.

use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::symlink;
use std::time::Duration;

use crate::common::far::Far;
use crate::common::{Ran, Server, until};
use crate::write_back::Work;

impl Far {
    /// Starts a proxy whose session `default` is write-through, served by NFS.
    fn proxy_of_sessions(&self) -> Server {
        let url = self.url("?retry=1&soft");
        self.serve(format!("proxy {url} --cache cache --control proxy.sock --nfs 127.0.0.1:0"))
    }

    fn sessions(&self, line: &str) -> Ran {
        self.run(format!("session {line} --control proxy.sock"))
    }

    /// Creates a session of the tree, and returns its NFS address.
    fn create_nfs(&self, name: &str, options: &str) -> String {
        let made =
            self.sessions(&format!("create {name} {} --nfs 127.0.0.1:0{options}", self.url(""))).succeeded();
        let address = made.out.strip_prefix("ready nfs ").and_then(|rest| rest.split(' ').next());
        address.unwrap_or_else(|| panic!("no address in {made:?}")).to_owned()
    }

    fn listed(&self) -> String {
        self.sessions("list").succeeded().out
    }

    /// Creates a mounted write-back session of the tree.
    fn create_kept(&self, name: &str) -> Ran {
        let url = self.url("?soft&timeo=20&retrans=1");
        let options = "--mode write-back --contract exclusive --no-lease --fuse mnt";
        self.sessions(&format!("create {name} {url} {options}"))
    }
}

#[test]
fn session_is_created_served_and_detached() {
    let Some(far) = Far::new() else { return };
    let proxy = far.proxy_of_sessions();
    let address = far.create_nfs("lib.1", "");
    for (at, name) in [(&*address, "lib.1"), (proxy.nfs_address(), "tree")] {
        let read = far.run(format!("cat nfs://{at}/{name}/file"));
        assert_eq!((read.code, read.out.as_str()), (Some(0), "content\n"), "{read:?}");
    }
    let listed = far.listed();
    assert!(listed.contains("default running") && listed.contains("lib.1 running"), "{listed}");
    assert!(listed.contains(&*address) && listed.contains(proxy.nfs_address()), "{listed}");
    far.run("top --once --json proxy.sock").says(&["\"/lib.1\"", "\"/tree\""]);

    // Duplicate name.
    far.sessions(&format!("create lib.1 {} --nfs 0", far.url("")))
        .failed(1, &["that is running", "tombolo session detach lib.1"]);
    far.sessions("detach lib.1").succeeded();
    assert!(!far.listed().contains("lib.1"));
    // A control socket named `create` is not mistaken for the command.
    symlink(far.path("proxy.sock"), far.path("create")).expect("symlink");
    let line = format!("session --control create create lib.2 {} --nfs 127.0.0.1:0", far.url(""));
    far.run(line).succeeded();
    far.sessions("detach lib.2").succeeded();
    assert!(TcpStream::connect(&*address).is_err(), "it is served still");
    proxy.stop();
    // Ended sessions are not restored.
    let proxy = far.proxy_of_sessions();
    assert!(!far.listed().contains("lib.1"));
    proxy.stop();
}

#[test]
fn invalid_session_is_refused_with_remedy() {
    let Some(far) = Far::new() else { return };
    let proxy = far.proxy_of_sessions();
    let (url, taken) = (far.url(""), proxy.nfs_address());
    let long = "a".repeat(65);
    let line = |name: &str, url: &str, nfs: &str| {
        format!("session create {name} {url} --nfs {nfs} --control proxy.sock")
    };
    let gone = "nfs://127.0.0.1:1/tree?retry=0&soft";
    let none = far.location("/none?retry=0&soft");
    far.all_fail(&[
        (&line("busy", &url, taken), 1, &[taken, "in use", "choose another port"]),
        (&line("gone", gone, "0"), 1, &["127.0.0.1:1", "fix the problem and try again"]),
        (&line("none", &none, "0"), 1, &["/none"]),
        (&line("tree", &url, "0"), 1, &["already serves /tree", "choose another name"]),
        (&line("default", &url, "0"), 2, &["choose another name"]),
        (&format!("session create a {url} --control proxy.sock"), 1, &["--nfs"]),
        ("session detach default --control proxy.sock", 1, &["end the proxy"]),
        ("session detach none --control proxy.sock", 1, &["tombolo session list"]),
        ("session flush --control origin.sock", 1, &["has no write-back session"]),
        ("session list --control origin.sock", 1, &["not a proxy"]),
    ]);
    for name in ["a/b", "..", ".", &long] {
        let refused = far.run(line(name, &url, "0"));
        assert_eq!(refused.code, Some(2), "{refused:?}");
        assert!(refused.err.contains("is not the name of a session"), "{refused:?}");
    }
    assert_eq!(far.listed().lines().filter(|line| !line.starts_with(' ')).count(), 1, "{}", far.listed());
    assert!(!far.path("cache/sessions").exists() && !far.path("cache/sessions.toml").exists());
    proxy.stop();
}

#[test]
fn detached_session_keeps_unsent_changes() {
    let Some(mut far) = Far::new() else { return };
    let mut proxy = far.proxy_of_sessions();
    far.create_kept("work").succeeded();
    fs::write(far.mnt("one"), "1\n").expect("write");
    far.sessions("flush work").succeeded();
    assert_eq!(fs::read_to_string(far.tree("one")).expect("read"), "1\n");
    fs::read_dir(far.place.mnt()).expect("list").for_each(drop);
    far.stop_origin();
    fs::write(far.mnt("two"), "2\n").expect("write");

    far.sessions("detach work").failed(1, &["cannot send all changes of /work to the origin", "kept in"]);
    assert!(far.listed().contains("work kept"), "{}", far.listed());
    // It is retained, however often its end is requested.
    far.sessions("detach work").failed(1, &["have unsent changes"]);
    far.run("cache drop cache").failed(1, &["in use by process"]);
    proxy.signal("TERM");
    proxy.wait();
    far.run("cache drop cache").failed(1, &["have unsent changes"]);

    far.start_origin();
    let proxy = far.proxy_of_sessions();
    until("the session is back", || far.listed().contains("work running"));
    assert_eq!(fs::read_to_string(far.mnt("two")).expect("read"), "2\n");
    far.sessions("wait work --timeout 60").succeeded();
    assert_eq!(fs::read_to_string(far.tree("two")).expect("read"), "2\n");
    // The end of the proxy also sends everything; so does a signal.
    fs::write(far.mnt("three"), "3\n").expect("write");
    proxy.signal("USR1");
    until("SIGUSR1 brings it", || far.tree("three").exists());
    fs::write(far.mnt("four"), "4\n").expect("write");
    proxy.stop();
    assert_eq!(fs::read_to_string(far.tree("four")).expect("read"), "4\n");
    // Sessions that were running at the proxy's end are restored.
    let proxy = far.proxy_of_sessions();
    until("the session is back", || far.listed().contains("work running"));
    far.sessions("detach work").succeeded();
    proxy.stop();
}

#[test]
fn ending_session_has_no_endpoints() {
    let Some(far) = Far::new() else { return };
    let proxy = far.proxy_of_sessions();
    let url = far.url("?soft&timeo=600");
    let options = "--mode write-back --contract exclusive --no-lease --fuse mnt";
    far.sessions(&format!("create work {url} {options}")).succeeded();
    fs::read_dir(far.place.mnt()).expect("list").for_each(drop);
    let origin = far.origin.as_ref().expect("it runs");
    origin.signal("STOP");
    fs::write(far.mnt("one"), "1\n").expect("write");
    let mut detach = far.tombolo("session detach work --control proxy.sock").spawn().expect("start");
    let mut listed = String::new();
    until("the session is ending", || {
        listed = far.listed();
        listed.contains("work ending")
    });
    origin.signal("CONT");
    assert!(!listed.contains("export=/work"), "{listed}");
    assert!(detach.wait().expect("its end").success());
    assert_eq!(fs::read_to_string(far.tree("one")).expect("read"), "1\n");
    proxy.stop();
}

#[test]
fn proxy_end_flushes_each_session_and_reports_first_failure() {
    let (Some(far), Some(mut absent)) = (Far::new(), Far::new()) else { return };
    let url = far.url("?retry=1&soft");
    let words = format!("proxy {url} --cache cache --control proxy.sock --nfs 127.0.0.1:0");
    let mut command = far.tombolo(&words);
    let errors = far.path("errors");
    command.stderr(fs::File::create(&errors).expect("create"));
    let mut proxy = far.started(command, "ready control");
    let sessions = [("first", "mnt"), ("second", "mnt-2"), ("third", "mnt-3")];
    for (name, mount) in sessions {
        let origin = if name == "second" { &far } else { &absent };
        fs::create_dir_all(far.path(mount)).expect("mkdir");
        let url = origin.url("?soft&timeo=20&retrans=1");
        let options = "--mode write-back --contract exclusive --no-lease --fuse";
        far.sessions(&format!("create {name} {url} {options} {mount}")).succeeded();
        fs::read_dir(far.path(mount)).expect("list").for_each(drop);
    }
    absent.stop_origin();
    for (name, mount) in sessions {
        fs::write(far.path(mount).join(name), name).expect("write");
    }
    proxy.signal("TERM");
    assert_eq!(proxy.wait().code(), Some(1));
    assert_eq!(fs::read_to_string(far.tree("second")).expect("read"), "second");
    let said = fs::read_to_string(errors).expect("read");
    for name in ["first", "third"] {
        assert!(said.contains(&format!("cannot send all changes of /{name} to the origin")), "{said}");
    }
    let reported: Vec<&str> = said.lines().filter(|line| line.starts_with("tombolo: ")).collect();
    assert!(matches!(reported[..], [one] if one.contains("/first")), "{said}");

    absent.start_origin();
    let proxy = far.proxy_of_sessions();
    for name in ["first", "third"] {
        until("the session is back", || far.listed().contains(&format!("{name} running")));
        far.sessions(&format!("flush {name}")).succeeded();
        assert_eq!(fs::read_to_string(absent.tree(name)).expect("read"), name);
    }
    proxy.stop();
}

#[test]
fn session_with_absent_origin_is_retried_in_background() {
    let Some(far) = Far::new() else { return };
    let serve = |address: &str| {
        far.serve(format!("serve tree --nfs {address} --state other-state --control other.sock"))
    };
    let other = serve(&format!("{}:0", far.address.ip()));
    let address = other.nfs_address().to_owned();
    let proxy = far.proxy_of_sessions();
    far.sessions(&format!("create other nfs://{address}/tree --nfs 127.0.0.1:0")).succeeded();
    proxy.stop();
    other.stop();

    let proxy = far.proxy_of_sessions();
    until("it waits", || far.listed().contains("other waiting"));
    assert!(far.listed().contains(&address), "the reason is not told: {}", far.listed());
    far.run(format!("cat nfs://{}/tree/file", proxy.nfs_address())).succeeded();
    let other = serve(&address);
    until("its origin is there", || far.listed().contains("other running"));
    proxy.stop();
    other.stop();
}

#[test]
fn invalidate_covers_one_session_or_all() {
    let Some(far) = Far::new() else { return };
    let proxy = far.proxy_of_sessions();
    let kept = " --mode write-back --contract exclusive --no-lease";
    let [one, two] = ["one", "two"].map(|name| (name, far.create_nfs(name, kept)));
    let shows = |session: &(&str, String), file: &str| {
        let listed = far.run(format!("ls nfs://{}/{}", session.1, session.0)).succeeded();
        listed.out.lines().any(|name| name == file)
    };
    assert!(shows(&one, "file") && shows(&two, "file"));
    // Bypasses the proxy, in violation of the contract.
    fs::write(far.tree("new"), "").expect("write");
    assert!(!shows(&one, "new") && !shows(&two, "new"));
    far.sessions("invalidate one").succeeded();
    assert!(shows(&one, "new") && !shows(&two, "new"), "only the one that was named");
    fs::write(far.tree("newer"), "").expect("write");
    proxy.signal("USR2");
    until("SIGUSR2 has all sessions ask anew", || shows(&one, "newer") && shows(&two, "newer"));
    proxy.stop();
}

#[test]
fn sessions_have_own_policy_and_state() {
    let Some(far) = Far::new() else { return };
    let proxy = far.proxy_of_sessions();
    let line = format!("create kept {} --mode write-back --no-lease --nfs 127.0.0.1:0", far.url(""));
    far.sessions(&line).failed(1, &["--contract exclusive"]);
    fs::write(far.path("policy.toml"), "contract = \"exclusive\"\n").expect("write");
    far.sessions(&format!("{line} --policy policy.toml --state kept-state")).succeeded();
    assert!(fs::read_dir(far.path("kept-state")).expect("list").next().is_some());
    proxy.stop();
    let proxy = far.proxy_of_sessions();
    until("the session is back with them", || far.listed().contains("kept running"));
    far.sessions("detach kept").succeeded();
    fs::write(far.path("policy.toml"), "contract = \"none\"\n").expect("write");
    far.sessions(&format!("{line} --policy policy.toml")).failed(1, &["policy.toml", "contract"]);
    proxy.stop();
}

#[test]
fn killed_proxy_keeps_durable_changes_of_each_session() {
    let Some(far) = Far::new() else { return };
    let seed = fastrand::u64(..);
    eprintln!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    fs::create_dir(far.path("mnt-2")).expect("mkdir");
    let sessions = [("one", "mnt"), ("two", "mnt-2")];
    let mut proxy = far.proxy_of_sessions();
    let mut works = sessions.map(|(name, mount)| {
        fs::create_dir(far.tree(name)).expect("mkdir");
        let options = format!("--mode write-back --contract exclusive --no-lease --fuse {mount}");
        far.sessions(&format!("create {name} {} {options}", far.url("?soft"))).succeeded();
        let mut work = Work::new(far.path(mount).join(name), random.fork());
        work.begin();
        work
    });
    for _ in 0..3 {
        std::thread::scope(|scope| {
            for work in &mut works {
                scope.spawn(move || work.go_on());
            }
            std::thread::sleep(Duration::from_millis(random.u64(50..400)));
            proxy.kill();
        });
        sessions.iter().for_each(|(_, mount)| far.place.take_away(&far.path(mount)));
        proxy = far.proxy_of_sessions();
        for (name, _) in sessions {
            until("the session is back", || far.listed().contains(&format!("{name} running")));
        }
        for work in &mut works {
            work.check(&work.dir.clone());
        }
    }
    proxy.stop();
    for ((name, _), work) in sessions.iter().zip(&mut works) {
        work.check(&far.tree(name));
    }
}
