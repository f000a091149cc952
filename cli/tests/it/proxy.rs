//! Proxies of NFS servers, through all front ends.

use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::common::far::Far;
use crate::common::{MountPlace, Server, numbers, overwrite, served, until};

#[test]
fn nfs_export_is_served_on_all_front_ends() {
    let Some(place) = MountPlace::new() else { return };
    let scratch = &place.0;
    let (_origin, url) = scratch.serve_nfs();
    let words = format!("serve {url} --control proxy.sock --state proxy-state --squash none");
    let fronts = "--fuse mnt --shm link.sock --virtiofs vm.sock --nfs 0";
    let proxy = scratch.serve(format!("{words} {fronts}"));
    proxy.says(&["export=/tree"]);

    assert_eq!(fs::read_to_string(place.mnt().join("file")).expect("read"), "content\n");
    fs::write(place.mnt().join("new"), "through the mount\n").expect("write");
    assert_eq!(fs::read_to_string(scratch.path("tree/new")).expect("read"), "through the mount\n");
    scratch.run("cp -q shm:link.sock/tree/new by-shm").succeeded();
    assert_eq!(fs::read_to_string(scratch.path("by-shm")).expect("read"), "through the mount\n");
    let through = format!("nfs://{}/tree/by-nfs", proxy.nfs_address());
    scratch.run(format!("cp -q by-shm {through}")).succeeded();
    assert_eq!(fs::read_to_string(scratch.path("tree/by-nfs")).expect("read"), "through the mount\n");
    proxy.stop();
}

#[test]
fn invalid_proxy_options_are_reported() {
    let Some(place) = MountPlace::new() else { return };
    let (_origin, url) = place.serve_nfs();
    let other = format!("serve {url}/none --nfs 0");
    place.all_fail(&[
        (&other, 1, &["cannot serve nfs://", "/none"]),
        ("serve nfs://127.0.0.1:1/tree --nfs 0", 1, &["cannot serve nfs://127.0.0.1:1/tree", "refused"]),
        ("serve nfs://host/tree?nosuch --nfs 0", 2, &["nosuch"]),
        ("serve nfs://host/tree", 2, &["no endpoint given"]),
    ]);
}

impl Far {
    fn proxy(&self, contract: &str) -> Server {
        self.proxy_with(contract, "")
    }

    fn proxy_with(&self, contract: &str, more: &str) -> Server {
        // The origin's options do not matter to cached data.
        let asked = if contract == "exclusive" { "?soft" } else { "" };
        let url = self.url(asked);
        let words = format!("proxy {url} --cache cache --contract {contract} --control proxy.sock");
        let proxy = self.serve(format!("{words} --fuse mnt {more}"));
        proxy.says(&[format!("mode=write-through contract={contract}")]);
        proxy
    }

    /// Returns the number of calls of a procedure at the origin.
    fn calls(&self, operation: &str) -> u64 {
        served(&self.top_of("origin.sock"), &[operation])
    }
}

#[test]
fn cached_data_need_no_origin_after_restart() {
    let Some(mut far) = Far::new() else { return };
    let large = numbers();
    fs::create_dir(far.tree("dir")).expect("mkdir");
    fs::write(far.tree("dir/large"), large).expect("write");
    std::os::unix::fs::symlink("dir/large", far.tree("link")).expect("link");
    // Data fetched right after a change would not be reused after a restart.
    std::thread::sleep(Duration::from_millis(2100));
    let proxy = far.proxy("immutable");
    assert!(fs::read_to_string(far.mnt("link")).expect("read") == large);
    assert_eq!(fs::read_dir(far.mnt("dir")).expect("list").count(), 1);
    let read = far.calls("read");
    assert!(read > 0);
    proxy.stop();

    let proxy = far.proxy("immutable");
    let blocks = rustix::fs::statvfs(far.mnt("dir")).expect("statvfs").f_blocks;
    far.stop_origin();
    assert!(fs::read_to_string(far.mnt("link")).expect("read") == large, "the origin is away");
    assert_eq!(rustix::fs::statvfs(far.mnt("dir")).expect("statvfs").f_blocks, blocks);
    assert_eq!(fs::read_dir(far.mnt("dir")).expect("list").count(), 1);
    far.start_origin();
    assert_eq!(far.calls("read"), 0, "all data were here");
    proxy.stop();
    let info = far.run("cache info cache");
    assert!(info.out.contains("origin   nfs://127.") && info.out.contains("files    1 with"), "{}", info.out);
}

#[test]
fn an_open_sees_what_was_closed_at_the_origin() {
    let Some(far) = Far::new() else { return };
    let proxy = far.proxy("close-to-open");
    for round in 0..50 {
        // Equal lengths, many within a tick of the origin's clock.
        let text = format!("round {round:3}\n");
        fs::write(far.tree("file"), &text).expect("write");
        assert_eq!(fs::read_to_string(far.mnt("file")).expect("read"), text);
        fs::write(far.mnt("file"), format!("wrote {round:3}\n")).expect("write");
        assert_eq!(fs::read_to_string(far.tree("file")).expect("read"), format!("wrote {round:3}\n"));
    }
    proxy.stop();
}

#[test]
fn damaged_data_are_fetched_again_and_told_of() {
    let Some(far) = Far::new() else { return };
    let large = numbers();
    fs::write(far.tree("large"), large).expect("write");
    std::thread::sleep(Duration::from_millis(2100));
    let proxy = far.proxy("exclusive");
    assert!(fs::read_to_string(far.mnt("large")).expect("read") == large);
    proxy.stop();

    let damage = || {
        let folders = fs::read_dir(far.path("cache/objects")).expect("objects");
        let files = folders.flat_map(|folder| fs::read_dir(folder.expect("a folder").path()).expect("list"));
        let data: Vec<_> = files.map(|file| file.expect("a file").path()).collect();
        let [data] = &data[..] else { panic!("one data file, and not {data:?}") };
        overwrite(data, large.len() as u64 / 2, b"damaged");
    };
    damage();
    let proxy = far.proxy("exclusive");
    assert!(fs::read_to_string(far.mnt("large")).expect("read") == large, "a damaged block was read");
    proxy.stop();
    damage();
    far.run("cache verify cache").failed(1, &["1 of ", "blocks were damaged"]);
    far.run("cache verify cache").succeeded();
    far.run("cache drop cache").succeeded();
    assert!(!far.path("cache").exists());
}

#[test]
fn a_cache_has_one_owner_and_one_origin() {
    let Some(far) = Far::new() else { return };
    let proxy = far.proxy("close-to-open");
    let url = format!("proxy {} --cache cache --nfs 0", far.url(""));
    let in_use = format!("in use by process {}", proxy.pid());
    far.place
        .0
        .all_fail(&[(&url, 1, &["cannot cache nfs://", &in_use]), ("cache info cache", 1, &[&in_use])]);
    proxy.stop();
    far.all_fail(&[
        ("proxy plain --cache cache --nfs 0", 1, &["not a directory"]),
        ("proxy tree --cache cache --nfs 0", 1, &["a cache of nfs://127.", "choose another directory"]),
        ("proxy tree --cache cache --block-size 5000 --nfs 0", 2, &["power of two"]),
        ("proxy tree --cache cache --contract strict --nfs 0", 2, &["write immutable"]),
        ("proxy tree --cache cache --borrow-from cache --nfs 0", 2, &["its own --cache directory"]),
        ("proxy --cache cache --nfs 0", 2, &["exactly one location is required"]),
        ("cache info tree", 1, &["not a cache directory"]),
        ("cache drop tree", 1, &["not a cache directory"]),
    ]);
}

#[test]
fn proxy_borrows_and_survives_owners_kill() {
    let Some(far) = Far::new() else { return };
    let large = numbers();
    ["one", "two", "three"].iter().for_each(|name| fs::write(far.tree(name), large).expect("write"));
    std::thread::sleep(Duration::from_millis(2100));
    let (scratch, url) = (&far.place.0, far.url(""));
    scratch.run(format!("cache fill {url} --cache shared one two")).succeeded();
    let words = format!("proxy {url} --cache shared --share-cache --control owner.sock");
    let fronts = "--nfs 127.0.0.1:0 --state owner-state";
    let owner = scratch.serve(format!("{words} {fronts}"));
    owner.says(&["shared mode=write-through contract=close-to-open shared"]);
    let proxy = far.proxy_with("close-to-open", "--borrow-from shared");
    let counts = |socket: &str| {
        let counts = scratch.cache_counts(socket);
        let count = |name: &str| counts[name].as_u64().expect("a count");
        (count("fetched_bytes"), count("borrowed_bytes"), count("lent_bytes"))
    };
    // On a busy machine the owner may seem to hang, and some data are fetched.
    let len = large.len() as u64;
    assert!(fs::read_to_string(far.mnt("one")).expect("read") == large);
    let (fetched, borrowed, _) = counts("proxy.sock");
    assert_eq!((borrowed > 0, fetched + borrowed), (true, len));
    assert!(counts("owner.sock").2 >= borrowed);
    owner.kill();
    assert!(fs::read_to_string(far.mnt("one")).expect("read") == large);
    assert!(fs::read_to_string(far.mnt("two")).expect("read") == large);
    let (fetched, ..) = counts("proxy.sock");
    assert!(fetched >= len, "{fetched}");

    // The next owner lends again.
    let owner = scratch.serve(format!("{words} {fronts}"));
    let in_use = format!("in use by process {}", owner.pid());
    scratch.run(format!("proxy {url} --cache shared --nfs 0")).failed(1, &[&in_use, "--borrow-from shared"]);
    owner.stop();
    proxy.stop();
}

#[test]
fn proxy_reads_data_from_another_hosts_cache() {
    let Some(far) = Far::new() else { return };
    let large = numbers();
    fs::write(far.tree("large"), large).expect("write");
    let (scratch, url) = (&far.place.0, far.url(""));
    let words = format!("proxy {url} --cache middle --nfs 127.0.0.1:0 --state middle-state");
    let middle = scratch.serve(format!("{words} --control middle.sock"));
    let from = format!("nfs://{}/{}", middle.nfs_address(), url.rsplit('/').next().expect("a name"));
    let proxy = far.proxy_with("close-to-open", &format!("--data-from {from}"));
    proxy.says(&[format!("data-from={from}")]);
    assert!(fs::read_to_string(far.mnt("large")).expect("read") == large);
    let counts = scratch.cache_counts("proxy.sock");
    let count = |name: &str| counts[name].as_u64().expect("a count");
    // On a busy machine the other proxy may seem to hang, and some data are fetched.
    assert_eq!(count("fetched_bytes") + count("borrowed_bytes"), large.len() as u64);
    assert!(count("borrowed_bytes") > 0 && count("refused_bytes") == 0);
    proxy.stop();
    middle.stop();
}

#[test]
fn filled_cache_needs_no_origin() {
    let Some(mut far) = Far::new() else { return };
    let text = |n: usize| numbers()[..1000 * n].to_owned();
    for dir in ["dir", "dir/below", "other"] {
        fs::create_dir(far.tree(dir)).expect("mkdir");
        (0..20).for_each(|n| fs::write(far.tree(&format!("{dir}/{n}")), text(n)).expect("write"));
    }
    std::os::unix::fs::symlink("0", far.tree("dir/link")).expect("link");
    std::thread::sleep(Duration::from_millis(2100));
    let url = far.url("");
    let fill = |path| far.run(format!("cache fill {url} --cache cache {path}"));
    let first = fill("dir").succeeded();
    assert!(first.out.starts_with("40 files with "), "{}", first.out);
    let again = fill("dir");
    assert!(again.out.ends_with(", 0 fetched now\n"), "{}", again.out);
    fill("none").failed(1, &["cannot find none"]);
    let proxy = far.proxy("immutable");
    far.stop_origin();
    for n in 0..20 {
        let read = fs::read_to_string(far.mnt(&format!("dir/below/{n}"))).expect("read");
        assert!(read == text(n));
    }
    assert_eq!(fs::read_link(far.mnt("dir/link")).expect("link").to_str(), Some("0"));
    let counts = far.cache_counts("proxy.sock");
    assert_eq!((counts["fetched_bytes"].as_u64(), counts["misses"].as_u64()), (Some(0), Some(0)), "{counts}");
    assert!(counts["hits"].as_u64() > Some(20) && counts["hit_bytes"] == counts["served_bytes"], "{counts}");
    proxy.stop();
}

#[test]
fn push_mount_of_proxy_repeats_no_request() {
    let Some(far) = Far::new() else { return };
    fs::create_dir(far.tree("dir")).expect("mkdir");
    (0..50).for_each(|n| fs::write(far.tree(&format!("dir/{n}")), "one\n").expect("write"));
    std::thread::sleep(Duration::from_millis(2100));
    let more = "--coherence push --nfs 127.0.0.1:0 --squash none --state proxy-state";
    let proxy = far.proxy_with("exclusive", more);
    let look = || {
        for entry in fs::read_dir(far.mnt("dir")).expect("list") {
            let path = entry.expect("an entry").path();
            assert!(
                fs::metadata(&path).expect("stat").len() == 4 && fs::read(&path).expect("read").len() == 4
            );
        }
    };
    let asked = || served(&far.top_of("proxy.sock"), &["lookup", "getattr", "read"]);
    look();
    // Reading updates the access time, which the kernel may fetch once more later, and a proxy that got no
    // processor for long forgets what it knew. The pause is longer than any lifetime of an entry.
    until("the kernel has it all", || {
        let before = asked();
        std::thread::sleep(Duration::from_millis(1500));
        look();
        asked() == before
    });

    // Changes through another front end are visible at once, without further requests.
    let by_nfs = |name: &str| format!("nfs://{}/tree/dir/{name}", proxy.nfs_address());
    fs::write(far.path("new"), "three\n").expect("write");
    far.run(format!("cp -q new {}", by_nfs("7"))).succeeded();
    until("the new data are seen", || fs::read_to_string(far.mnt("dir/7")).expect("read") == "three\n");
    far.run(format!("cp -q new {}", by_nfs("new"))).succeeded();
    until("the new name is seen", || far.mnt("dir/new").exists());
    far.run(format!("rm {}", by_nfs("new"))).succeeded();
    until("it is gone", || !far.mnt("dir/new").exists());
    far.run(format!("mv {} {}", by_nfs("7"), by_nfs("moved"))).succeeded();
    until("it is moved", || far.mnt("dir/moved").exists() && !far.mnt("dir/7").exists());
    proxy.stop();
    let url = format!("proxy {} --cache cache --fuse mnt --coherence push", far.url(""));
    far.all_fail(&[(&url, 2, &["all changes made through the proxy", "--contract exclusive"])]);
}

fn lease_is(far: &Far, control: &str, state: &str) {
    until(&format!("{control} has its lease {state}"), || far.cache_counts(control)["lease"] == state);
}

#[test]
fn leased_proxies_revalidate_nothing_and_see_changes() {
    let Some(far) = Far::new() else { return };
    fs::write(far.tree("file"), "old").expect("write");
    // Recent changes are revalidated.
    std::thread::sleep(Duration::from_millis(2100));
    let first = far.proxy("lease");
    let (url, there) = (far.url(""), far.path("there"));
    fs::create_dir(&there).expect("mkdir");
    let words = format!("proxy {url} --cache other --fuse there --contract lease");
    let other = far.serve(format!("{words} --control other.sock"));
    let read = |dir: &Path| fs::read_to_string(dir.join("file")).expect("read");
    let asked = || served(&far.top_of("origin.sock"), &["open", "lookup", "getattr", "read"]);
    let here = far.mnt("");
    for control in ["proxy.sock", "other.sock"] {
        lease_is(&far, control, "held");
    }
    assert_eq!([read(&here), read(&there)], ["old", "old"]);
    let before = asked();
    for _ in 0..20 {
        assert_eq!([read(&here), read(&there)], ["old", "old"]);
    }
    assert_eq!(asked(), before);
    for round in 0..3 {
        let text = format!("new {round}");
        fs::write(there.join("file"), &text).expect("write");
        assert_eq!(read(&here), text, "at once");
    }
    lease_is(&far, "proxy.sock", "held");

    let tells: &[&str] = &["--contract lease", "--contract exclusive"];
    far.all_fail(&[(
        &format!("proxy {url} --cache third --nfs 0 --mode write-back --contract lease"),
        2,
        tells,
    )]);
    other.stop();
    far.run("umount there");
    first.stop();
}

#[test]
fn a_proxy_without_a_lease_names_the_option() {
    let Some(mut far) = Far::new() else { return };
    far.stop_origin();
    let address = far.address.to_string();
    let serve = format!("serve tree --nfs {address} --squash none --state origin-state --leases");
    let (url, cache) = (far.url(""), "--cache cache --nfs 0 --contract lease");
    for leases in ["off", "tls", "10.0.0.0/8"] {
        let origin = far.serve(format!("{serve} {leases} --control origin.sock"));
        let refused = far.run(format!("proxy {url} {cache}"));
        refused.failed(1, &["grants no leases to this host", "--leases"]);
        origin.stop();
    }
    let (both, all) = (format!("{serve} off --leases tls"), format!("{serve} all"));
    far.all_fail(&[(&both, 2, &["--leases off"]), (&all, 2, &["10.0.0.0/8"])]);
}

#[test]
fn a_proxy_of_a_proxy_is_granted_no_lease() {
    let Some(far) = Far::new() else { return };
    let (url, nfs) = (far.url(""), "--nfs 127.0.0.1:0 --control middle.sock --state middle-state");
    let middle = far.serve(format!("proxy {url} --cache middle {nfs}"));
    let url = format!("nfs://{}/tree", middle.nfs_address());
    let refused = far.run(format!("proxy {url} --cache third --nfs 0 --contract lease"));
    refused.failed(1, &["grants no leases", "--contract close-to-open"]);
    middle.stop();
}

#[test]
fn exclusive_contract_admits_one_proxy() {
    let Some(far) = Far::new() else { return };
    let first = far.proxy("exclusive");
    first.says(&["contract=exclusive lease=.tombolo-lease"]);
    assert!(far.tree(".tombolo-lease").exists() && !far.mnt(".tombolo-lease").exists());
    lease_is(&far, "proxy.sock", "held");
    let url = far.url("");
    let words = format!("proxy {url} --cache other --nfs 0 --contract exclusive --no-lease");
    far.serve(format!("{words} --control other.sock")).stop();
    let other = format!("proxy {url} --cache other --nfs 0");
    let holder = format!("process {} on ", first.pid());
    let refused: &[&str] = &["cannot cache nfs://", &holder, "--take-lease"];
    far.all_fail(&[
        (&format!("{other} --contract exclusive"), 1, refused),
        (&format!("{other} --rule *.o,contract=exclusive"), 1, refused),
        (&format!("{other} --no-lease"), 2, &["require --contract exclusive"]),
    ]);

    first.kill();
    far.run("umount mnt");
    assert!(far.tree(".tombolo-lease").exists(), "a sudden end leaves it");
    far.proxy("exclusive").stop();
    assert!(!far.tree(".tombolo-lease").exists(), "it is given back");

    let words = format!("proxy {url} --cache other --nfs 0 --contract exclusive --read-only");
    let proxy = far.serve(format!("{words} --control other.sock"));
    proxy.says(&["mode=read-only contract=exclusive lease=.tombolo-lease"]);
    proxy.stop();

    let read_only = far.serve("serve tree --nfs 127.0.0.1:0 --read-only --control read-only.sock");
    let url = format!("nfs://{}/tree", read_only.nfs_address());
    let refused = far.run(format!("proxy {url} --cache third --nfs 0 --contract exclusive"));
    refused.failed(1, &[".tombolo-lease", "read-only", "--contract immutable", "--no-lease"]);
    read_only.stop();
}
