//! Write-back proxies: delivery of changes across kills and absences of the origin.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::common::far::Far;
use crate::common::{Ran, Server, numbers, until};

impl Far {
    pub fn words(&self, url: &str) -> String {
        let words = format!("proxy {url} --cache cache --mode write-back --contract exclusive");
        format!("{words} --take-lease --control proxy.sock --fuse mnt")
    }

    pub fn write_back(&self) -> Server {
        let proxy = self.serve(self.words(&self.url("?retry=1&soft")));
        proxy.says(&["mode=write-back contract=exclusive"]);
        proxy
    }

    pub fn session(&self, words: &str) -> Ran {
        self.run(format!("session {words} --control proxy.sock"))
    }

    /// Asserts that the origin's tree equals the expected one.
    fn compare(&self, expected: &Path) {
        let mut diff = Command::new("diff");
        diff.args(["-r", "--no-dereference", "--exclude=.tombolo-lease"]);
        let found = diff.arg(expected).arg(self.path("tree")).output().expect("diff");
        assert!(found.status.success(), "{}", String::from_utf8_lossy(&found.stdout));
    }
}

/// Performs the same durable changes on any tree.
fn work(dir: &Path, seed: u32) {
    let path = |name: &str| dir.join(format!("{name}-{seed}"));
    fs::create_dir(path("dir")).expect("mkdir");
    let put = |path: &Path, bytes: &[u8]| {
        let mut file = File::create(path).expect("create");
        file.write_all(bytes).expect("write");
        file.sync_all().expect("fsync");
    };
    put(&path("dir").join("large"), numbers().repeat(3).as_bytes());
    put(&path("new"), b"new\n");
    put(&path("replaced"), b"before\n");
    fs::rename(path("new"), path("replaced")).expect("rename");
    put(&path("gone"), b"gone\n");
    fs::remove_file(path("gone")).expect("remove");
    symlink("dir/large", path("link")).expect("symlink");
    File::open(dir).expect("open").sync_all().expect("fsync of a directory");
}

#[test]
fn write_back_survives_absence_and_kill() {
    let Some(mut far) = Far::new() else { return };
    let expected = far.path("expected");
    fs::create_dir(&expected).expect("mkdir");
    fs::copy(far.path("tree/file"), expected.join("file")).expect("copy");
    let proxy = far.write_back();
    for dir in [&far.place.mnt(), &expected] {
        work(dir, 1);
    }
    far.session("flush").succeeded();
    far.compare(&expected);

    // Files created here, and the names in the root, are known without the origin.
    far.stop_origin();
    let listed = far.program("ls", &["-lR", "mnt/dir-1", "mnt"]).output().expect("ls");
    assert!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
    for dir in [&far.place.mnt(), &expected] {
        work(dir, 2);
        fs::write(dir.join("dir-1/large"), "short now\n").expect("write");
    }
    File::open(far.mnt("dir-1/large")).expect("open").sync_all().expect("fsync");
    far.session("wait --local --timeout 60").succeeded();
    let shown = far.session("show --json");
    shown.says(&["\"dirty_nodes\":"]);
    assert!(!shown.out.contains("\"dirty_nodes\":0"), "{}", shown.out);
    proxy.kill();
    far.place.take_away(&far.place.mnt());

    // Waits for the origin.
    let url = far.url("?retry=1&soft");
    let started = far.tombolo(far.words(&url)).spawn().expect("start");
    far.start_origin();
    until("the proxy serves again", || far.session("show").code == Some(0));
    assert_eq!(fs::read_to_string(far.mnt("replaced-2")).expect("read"), "new\n");
    far.session("flush").succeeded();
    far.compare(&expected);
    crate::common::signal(started.id(), "TERM");
    let ended = started.wait_with_output().expect("wait");
    assert_eq!(ended.status.code(), Some(0), "{}", String::from_utf8_lossy(&ended.stderr));
    far.compare(&expected);
}

#[test]
fn the_end_brings_everything_or_says_what_is_kept() {
    let Some(mut far) = Far::new() else { return };
    let soft = far.url("?soft&timeo=20&retrans=1");
    let words = far.words(&soft);
    let proxy = far.write_back();
    fs::write(far.mnt("one"), "1\n").expect("write");
    proxy.stop();
    assert_eq!(fs::read_to_string(far.path("tree/one")).expect("read"), "1\n");

    let mut proxy = far.serve(&words);
    fs::write(far.mnt("one"), "2\n").expect("write");
    fs::read_dir(far.place.mnt()).expect("list").for_each(drop);
    far.stop_origin();
    fs::write(far.mnt("two"), "2\n").expect("write");
    far.session("flush").failed(1, &["cannot send all changes of /tree to the origin", "kept"]);
    proxy.signal("TERM");
    assert_eq!(proxy.wait().code(), Some(1));
    far.start_origin();

    let kept = "files and names in it have unsent changes";
    let through = format!("proxy {soft} --cache cache --contract exclusive --take-lease --nfs 0");
    far.all_fail(&[
        (&through, 1, &[kept, "start the proxy with --mode write-back"]),
        ("cache drop cache", 1, &[kept]),
    ]);
    far.write_back().stop();
    assert_eq!(fs::read_to_string(far.path("tree/one")).expect("read"), "2\n");
    assert_eq!(fs::read_to_string(far.path("tree/two")).expect("read"), "2\n");
    far.run("cache drop cache").succeeded();
}

#[test]
fn signals_and_watermarks_say_what_the_origin_has() {
    let Some(far) = Far::new() else { return };
    let proxy = far.write_back();
    fs::write(far.mnt("file-1"), "1\n").expect("write");
    proxy.signal("USR1");
    until("SIGUSR1 brings it", || far.path("tree/file-1").exists());
    far.session("wait --remote --timeout 60").succeeded();
    let top = far.run("top --once proxy.sock");
    top.says(&["write-back  0.0 MiB in 0 files and names unsent"]);

    // Bypasses the proxy, in violation of the contract: only reported changes are visible.
    fs::write(far.path("tree/other"), "other\n").expect("write");
    fs::read_dir(far.place.mnt()).expect("list").for_each(drop);
    proxy.signal("USR2");
    until("SIGUSR2 has everything asked anew", || far.mnt("other").exists());
    proxy.stop();
}

/// Returns the progress of changes according to the mount itself.
fn watermarks(mount: &Path) -> BTreeMap<String, u64> {
    let mut text = [0; 256];
    let len = rustix::fs::getxattr(mount, "user.tombolo.watermarks", &mut text).expect("getxattr");
    let words = std::str::from_utf8(&text[..len]).expect("text").split(' ');
    let marks = words.map(|word| word.split_once('=').expect("a value"));
    marks.map(|(key, value)| (key.to_owned(), value.parse().expect("a number"))).collect()
}

#[test]
fn mount_exposes_progress_of_changes() {
    let Some(mut far) = Far::new() else { return };
    let proxy = far.write_back();
    fs::write(far.mnt("old"), "1\n").expect("write");
    far.session("flush").succeeded();
    // Looked-up files are cached.
    far.program("ls", &["-lR", "mnt", "mnt/new"]).output().expect("ls");
    far.stop_origin();
    let before = watermarks(&far.place.mnt());
    let mut file = File::create(far.mnt("new")).expect("create");
    file.write_all(b"text").expect("write");
    file.sync_all().expect("fsync");
    let written = watermarks(&far.place.mnt());
    assert!(written["change"] > before["change"] && written["on_disk"] == written["change"], "{written:?}");
    assert_eq!(written["at_origin"], before["at_origin"], "the origin is away");
    drop(file);
    far.start_origin();
    far.session("flush").succeeded();
    let sent = watermarks(&far.place.mnt());
    assert!(sent["at_origin"] >= written["change"], "{sent:?}");
    assert_eq!(fs::read_to_string(far.path("tree/new")).expect("read"), "text");
    let none = rustix::fs::getxattr(far.mnt("new"), "user.tombolo.watermarks", &mut [0; 256]);
    assert_eq!(none, Err(rustix::io::Errno::NODATA));
    proxy.stop();
}

#[test]
fn invalid_write_back_is_reported() {
    let Some(far) = Far::new() else { return };
    let proxy = format!("proxy {} --cache cache --nfs 0", far.url(""));
    let words = |more: &str| format!("{proxy} {more}");
    far.all_fail(&[
        (&words("--mode write-back"), 2, &["--contract exclusive"]),
        (&words("--mode write-back --contract immutable"), 2, &["--contract exclusive"]),
        (&words("--write-back-limit 1G"), 2, &["--mode write-back"]),
        (&words("--rule *.o,mode=write-back"), 2, &["for all files"]),
        (&words("--mode write-back --contract exclusive --read-only"), 2, &["--read-only"]),
        ("session show --control none.sock", 1, &["none.sock"]),
        ("session flush --control origin.sock", 1, &["has no write-back session"]),
    ]);
}

/// Lists everything below a directory that other users may access, except sockets.
fn open_to_others(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).expect("list").map(|entry| entry.expect("an entry")) {
        let about = entry.metadata().expect("attributes");
        if about.is_dir() {
            found.extend(open_to_others(&entry.path()));
        }
        if about.mode() & 0o077 != 0 && !about.file_type().is_socket() {
            found.push(entry.path());
        }
    }
    found
}

#[test]
fn cache_is_private_under_any_umask() {
    let Some(far) = Far::new() else { return };
    let (cache, url) = (far.path("cache"), far.url("?retry=1&soft"));
    fs::create_dir(&cache).expect("mkdir");
    let start = |umask: &str| {
        let mut shell = far.program("sh", &["-c", "umask $0; exec \"$@\"", umask]);
        shell.arg(env!("CARGO_BIN_EXE_tombolo")).args(far.words(&url).split(' '));
        far.started(shell, "ready control")
    };
    let open_up = |mode: &str| {
        let done = Command::new("chmod").args(["-R", mode]).arg(&cache).status().expect("chmod(1)");
        assert!(done.success());
    };
    for umask in ["0", "022", "077"] {
        fs::set_permissions(&cache, fs::Permissions::from_mode(0o755)).expect("chmod");
        let proxy = start(umask);
        fs::write(far.mnt(umask), numbers()).expect("write");
        fs::write(far.mnt("small"), umask).expect("write");
        far.session("wait --local --timeout 60").succeeded();
        fs::read(far.mnt("file")).expect("read");
        assert_eq!(open_to_others(&cache), Vec::<PathBuf>::new(), "umask {umask}");
        proxy.stop();
        assert_eq!(open_to_others(&cache), Vec::<PathBuf>::new(), "umask {umask}, at the end");
    }
    // As left by earlier versions: files in use become private, and `objects` is unreachable for others.
    open_up("go+rX");
    let proxy = start("0");
    fs::write(far.mnt("small"), "again").expect("write");
    far.session("wait --local --timeout 60").succeeded();
    let open = open_to_others(&cache);
    assert!(
        open.iter().all(|path| path.parent() != Some(&*cache) && path.starts_with(cache.join("objects"))),
        "{open:?}"
    );
    proxy.stop();

    open_up("go-rwx");
    std::os::unix::fs::chown(&cache, Some(65534), None).expect("chown");
    far.all_fail(&[
        (&format!("proxy {url} --cache cache --nfs 0"), 1, &["cache: it belongs to user 65534", "--cache"]),
        ("cache info cache", 1, &["it belongs to user 65534"]),
    ]);
}

/// Operations of a program on the mount, and the guaranteed result.
pub struct Work {
    pub dir: PathBuf,
    random: fastrand::Rng,
    /// Contents of each name after completed operations.
    kept: BTreeMap<String, Vec<u8>>,
    /// Result of the last operation, which may not have completed.
    begun: Option<(String, Option<Vec<u8>>)>,
}

impl Work {
    pub fn new(dir: PathBuf, random: fastrand::Rng) -> Self {
        Self { dir, random, kept: BTreeMap::new(), begun: None }
    }

    /// Ensures progress on slow machines.
    pub fn begin(&mut self) {
        self.put("first", Some(&[1; 5000])).expect("durable");
        self.kept.insert("first".into(), vec![1; 5000]);
    }

    /// Works until an operation fails, as when the proxy is killed.
    pub fn go_on(&mut self) {
        loop {
            let name = format!("name-{}", self.random.u8(0..12));
            let after = (self.random.u8(0..4) > 0).then(|| {
                let len = [20, 5000, 100_000][self.random.usize(0..3)] + self.random.usize(0..1000);
                [self.random.u8(1..), self.random.u8(1..)].repeat(len / 2)
            });
            self.begun = Some((name.clone(), after.clone()));
            if self.put(&name, after.as_deref()).is_err() {
                return;
            }
            match after {
                Some(bytes) => self.kept.insert(name, bytes),
                None => self.kept.remove(&name),
            };
            self.begun = None;
        }
    }

    /// Replaces or removes a file durably.
    fn put(&self, name: &str, after: Option<&[u8]>) -> std::io::Result<()> {
        let (path, new) = (self.dir.join(name), self.dir.join("new"));
        match after {
            Some(bytes) => {
                let mut file = File::create(&new)?;
                file.write_all(bytes)?;
                file.sync_all()?;
                fs::rename(new, path)?;
            }
            None if self.kept.contains_key(name) => fs::remove_file(path)?,
            None => return Ok(()),
        }
        File::open(&self.dir)?.sync_all()
    }

    /// Asserts that all completed operations have taken effect; the last one may have.
    pub fn check(&mut self, dir: &Path) {
        if let Some((name, after)) = self.begun.take()
            && fs::read(dir.join(&name)).ok() == after
        {
            match after {
                Some(bytes) => self.kept.insert(name, bytes),
                None => self.kept.remove(&name),
            };
        }
        let listed = fs::read_dir(dir).expect("list").map(|entry| entry.expect("an entry").file_name());
        let listed: BTreeSet<_> =
            listed.filter_map(|name| name.into_string().ok()).filter(|name| name != "new").collect();
        assert_eq!(listed, self.kept.keys().cloned().collect());
        for (name, bytes) in &self.kept {
            assert!(&fs::read(dir.join(name)).expect("read") == bytes, "{name} is not what it was");
        }
    }
}

#[test]
fn killed_write_back_proxy_delivers_durable_changes() {
    let Some(mut far) = Far::new() else { return };
    let is_long = std::env::var_os("TOMBOLO_LONG").is_some();
    let seed = fastrand::u64(..);
    eprintln!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    fs::create_dir(far.path("tree/work")).expect("mkdir");
    let mut work = Work::new(far.mnt("work"), random.fork());
    for round in 0..if is_long { 60 } else { 4 } {
        let proxy = far.write_back();
        work.check(&far.mnt("work"));
        if round == 0 {
            work.begin();
        }
        let life = Duration::from_millis(random.u64(50..400));
        std::thread::scope(|scope| {
            scope.spawn(|| work.go_on());
            std::thread::sleep(life);
            if round % 2 == 1 {
                far.stop_origin();
                std::thread::sleep(life);
            }
            proxy.kill();
        });
        far.place.take_away(&far.place.mnt());
        if round % 2 == 1 {
            far.start_origin();
        }
    }
    let proxy = far.write_back();
    work.check(&far.mnt("work"));
    proxy.stop();
    work.check(&far.path("tree/work"));
}
