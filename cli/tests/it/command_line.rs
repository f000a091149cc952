//! Invalid command lines, and the help.

use std::fs;
use std::os::unix::net::UnixListener;

use crate::common::{Ran, Scratch};

const USAGE: i32 = 2;
const FAILED: i32 = 1;

#[test]
fn bad_words_get_one_line() {
    let scratch = Scratch::new();
    scratch.all_fail(&[
        ("srve tree", USAGE, &["did you mean 'serve'? See `tombolo --help`"]),
        ("serve --virtofs x", USAGE, &["did you mean '--virtiofs'?"]),
        ("serve tree --coherence strct", USAGE, &["strict, auto, always", "did you mean 'strict'?"]),
        ("frobnicate", USAGE, &["unrecognized subcommand 'frobnicate'", "see `tombolo --help`"]),
        ("serve --frob", USAGE, &["unexpected argument '--frob'", "see `tombolo serve --help`"]),
        ("top -n 0", USAGE, &["--interval", "0.1 to 3600"]),
        ("completions klingon", USAGE, &["klingon", "bash", "zsh"]),
        ("mount dir:tree", USAGE, &["<MOUNTPOINT>"]),
        ("doctor -q -v", USAGE, &["cannot be used with"]),
        ("umount", USAGE, &["<MOUNTPOINT>"]),
    ]);
    let mut odd_log = scratch.tombolo("doctor");
    odd_log.env("TOMBOLO_LOG", "a=b=c");
    Ran::new(odd_log).failed(USAGE, &["TOMBOLO_LOG", "a=b=c"]);
}

#[test]
fn serve_says_what_it_cannot_serve() {
    let scratch = Scratch::new();
    let too_long = format!("serve tree --virtiofs {}", "s".repeat(120));
    let _somebody = UnixListener::bind(scratch.path("busy")).expect("bind");
    fs::write(scratch.path("odd.toml"), "dir = ['tree']\nsockets = 1\n").expect("write");
    fs::write(scratch.path("bad.toml"), "dir = ['tree']\nvirtiofs = ['s,tag=a b']\n").expect("write");
    scratch.all_fail(&[
        ("serve", USAGE, &["no directory given"]),
        ("serve nothere --virtiofs s.sock", FAILED, &["cannot serve nothere", "No such file"]),
        ("serve plain --virtiofs s.sock", FAILED, &["plain", "not a directory"]),
        ("serve tree", USAGE, &["no endpoint given; give --virtiofs SOCKET, --nfs PORT or --shm SOCKET"]),
        ("serve tree=/a mnt=/a --virtiofs s.sock", USAGE, &["duplicate export /a"]),
        ("serve tree mnt --virtiofs s.sock", USAGE, &["several exports and none selected", "/tree, /mnt"]),
        ("serve tree=/.. --virtiofs s.sock", USAGE, &["not the name of an export"]),
        ("serve tree --virtiofs s.sock,export=/none", USAGE, &["no export /none", "available: /tree"]),
        ("serve tree --virtiofs s.sock,tag=", USAGE, &["not a tag"]),
        ("serve tree --virtiofs s.sock,tug=x", USAGE, &["\"tug=x\" is none of"]),
        ("serve tree --virtiofs s.sock --virtiofs s.sock", USAGE, &["given twice"]),
        ("serve tree --fuse nothere", FAILED, &["mount at nothere", "No such file"]),
        ("serve tree --fuse mnt,ro", USAGE, &["\"ro\" is none of"]),
        ("serve tree --fuse mnt --fuse mnt", USAGE, &["given twice"]),
        ("serve . --fuse mnt", FAILED, &["it is inside"]),
        ("serve tree --virtiofs nodir/s", FAILED, &["nodir/s", "No such file"]),
        ("serve tree --virtiofs plain", FAILED, &["plain", "not a socket"]),
        (&too_long, FAILED, &["at most 107 bytes"]),
        ("serve tree --virtiofs s.sock --coherence maybe", USAGE, &["strict, auto, always, push"]),
        (
            "serve tree --virtiofs s.sock --coherence push",
            USAGE,
            &["cannot be notified", "strict, auto or always"],
        ),
        (
            "serve tree --virtiofs s.sock --ask *.db,export=/none",
            USAGE,
            &["no export /none", "available: /tree"],
        ),
        ("serve tree --virtiofs s.sock --ask /", USAGE, &["the pattern is empty"]),
        ("serve tree --nfs 0 --ask *.db", USAGE, &["requires --fuse, --virtiofs, --shm", "noac"]),
        ("serve nfs://h/x --fuse mnt --ask *.db", USAGE, &["and nfs://h/x is not one"]),
        ("proxy tree --cache cache --fuse mnt --ask *.db", USAGE, &["contract"]),
        (
            "proxy tree --cache cache --fuse mnt --rule *.iso",
            USAGE,
            &["write PATTERN,KEY=VALUE with block-size"],
        ),
        ("proxy tree --cache cache --fuse mnt --rule *,frob=1", USAGE, &["\"frob=1\" is none of block-size"]),
        ("proxy tree --cache cache --fuse mnt --policy none", FAILED, &["policy none", "No such file"]),
        (
            "proxy tree --cache cache --fuse mnt --policy tree/file",
            USAGE,
            &["policy tree/file", "docs/use/proxy.md"],
        ),
        ("mount shm:s/x mnt -o ask=*.db", USAGE, &["is for local directories", "serve --ask"]),
        ("mount nfs://h/x mnt -o coherence=push", USAGE, &["is for directories", "coherence=auto"]),
        ("serve tree --virtiofs s.sock --metrics here", USAGE, &["PORT, :PORT, IP:PORT or NAME:PORT"]),
        ("serve tree --virtiofs s.sock --metrics 192.0.2.1:1", FAILED, &["192.0.2.1:1"]),
        ("serve tree --virtiofs s.sock --read-only=perhaps", USAGE, &["perhaps"]),
        ("serve tree --virtiofs s.sock --control nodir/c", FAILED, &["nodir/c"]),
        ("serve --config nofile.toml", FAILED, &["nofile.toml", "No such file"]),
        ("serve --config odd.toml", USAGE, &["odd.toml", "line 2", "unknown field `sockets`"]),
        ("serve --config bad.toml", USAGE, &["bad.toml", "line 2", "not a tag"]),
        ("serve tree --virtiofs busy", FAILED, &["busy", "another server is listening"]),
        ("serve tree --virtiofs s.sock --virtiofs busy", FAILED, &["another server is listening"]),
        ("serve tree --virtiofs s.sock --control busy", FAILED, &["another server is listening"]),
    ]);
}

#[test]
fn mount_says_what_it_cannot_mount() {
    let scratch = Scratch::new();
    scratch.all_fail(&[
        ("mount tree mnt", USAGE, &["\"tree\" is not a valid source: for a local directory write dir:tree"]),
        ("mount nsf://host/a mnt", USAGE, &["did you mean nfs://host/a?"]),
        ("mount dir:tree mnt -o ro,cohernce=strict", USAGE, &["did you mean coherence=…?"]),
        ("mount dir:tree mnt -o no_exec", USAGE, &["did you mean noexec?"]),
        ("mount dir:nothere mnt", FAILED, &["dir:nothere", "No such file"]),
        ("mount dir:plain mnt", FAILED, &["not a directory"]),
        ("mount dir:tree nothere", FAILED, &["mount at nothere", "No such file"]),
        ("mount dir:tree plain", FAILED, &["not a directory"]),
        ("mount dir:tree /proc", FAILED, &["busy", "type proc"]),
        ("mount dir:tree mnt -o ro,frob", USAGE, &["unknown mount option \"frob\""]),
        ("mount dir:tree mnt -o coherence=never", USAGE, &["strict, auto, always"]),
        ("mount dir:tree mnt -o threads", USAGE, &["threads=…"]),
        ("mount dir:. mnt", FAILED, &["it is inside", "choose a mount point outside"]),
        ("umount mnt", FAILED, &["nothing is mounted there"]),
        ("umount /proc", FAILED, &["type proc", "umount(8)"]),
        ("umount nothere", FAILED, &["No such file"]),
    ]);
}

#[test]
fn top_reports_absent_servers() {
    let scratch = Scratch::new();
    drop(UnixListener::bind(scratch.path("stale")).expect("bind"));
    scratch.all_fail(&[
        ("top --once", FAILED, &["none is running"]),
        ("top nothere", FAILED, &["nothere", "No such file"]),
        ("top stale", FAILED, &["stale", "refused"]),
        ("top plain", FAILED, &["plain"]),
    ]);
}

#[test]
fn mount_helper_has_the_exit_codes_of_mount() {
    let scratch = Scratch::new();
    scratch.run_mount_helper("dir:tree mnt -o rw,frob").failed(1, &["unknown mount option \"frob\""]);
    scratch.run_mount_helper("dir:nothere mnt -o rw").failed(32, &["No such file"]);
    let fake = "dir:tree mnt -f -n -o rw,noatime,x-systemd.automount -t tombolo";
    scratch.run_mount_helper(fake).succeeded();
    scratch.run_mount_helper("dir:tree mnt -f -s -q").failed(1, &["'-q'", "see `mount.tombolo --help`"]);
}

#[test]
fn help_is_readable_everywhere() {
    let scratch = Scratch::new();
    let commands = ["", "serve", "mount", "umount", "top", "doctor", "completions", "man"];
    for command in commands {
        let help = scratch.run(format!("{command} --help")).succeeded();
        assert!(help.out.contains("Usage: tombolo"), "{command}: {}", help.out);
        let wide = help.out.lines().find(|line| line.chars().count() > 100);
        assert_eq!(wide, None, "too wide for a terminal in the help of {command:?}");
        // Each option and argument has a description.
        let mut lines = help.out.lines().skip_while(|line| *line != "Options:").skip(1).peekable();
        while let Some(line) = lines.next() {
            let option = line.trim_start().strip_prefix('-').is_some_and(|rest| !rest.starts_with(' '));
            if option && line.trim().split("  ").count() == 1 {
                assert!(lines.peek().is_some_and(|next| !next.trim().is_empty()), "{command}: {line}");
            }
        }
    }
    let version = scratch.run("--version").succeeded();
    assert_eq!(version.out, format!("tombolo {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn help_hides_refused_options() {
    let scratch = Scratch::new();
    for (command, refused) in
        [("proxy", &["ask", "keep"][..]), ("session create", &["ask", "keep", "fd", "metrics", "sandbox"])]
    {
        let help = scratch.run(format!("{command} --help")).succeeded().out;
        let is_refused =
            |line: &&str| refused.iter().any(|name| line.trim().starts_with(&format!("--{name}")));
        assert_eq!(help.lines().find(is_refused), None, "{command}");
        assert!(help.contains("Origin: nfs://HOST/NAME"), "{help}");
    }
    let session = scratch.run("session create --help").succeeded().out;
    assert!(session.contains("Control socket of the proxy"), "{session}");
}

#[test]
fn manuals_and_completions_are_whole() {
    let scratch = Scratch::new();
    scratch.run("man pages").succeeded();
    let serve = fs::read_to_string(scratch.path("pages/tombolo-serve.1")).expect("a page");
    assert!(serve.contains("virtiofs"), "{serve}");
    assert!(scratch.path("pages/tombolo.1").exists() && scratch.path("pages/mount.tombolo.8").exists());
    for page in fs::read_dir(scratch.path("pages")).expect("list").flatten() {
        let (name, text) = (page.file_name(), fs::read_to_string(page.path()).expect("a page"));
        let name = name.to_str().expect("a name");
        // Part of a command is described with it.
        let sections: &[_] = match name {
            "tombolo-mount.1" | "mount.tombolo.8" => {
                &["MOUNT OPTIONS", "EXAMPLES", "FILES", "SEE ALSO", "EXIT STATUS", "nconnect=N"]
            }
            "tombolo-serve.1" => &["CONFIGURATION FILE", "EXAMPLES", "FILES", "SEE ALSO", "EXIT STATUS"],
            name if ["keys", "cache", "session", "vm"]
                .iter()
                .any(|of| name.starts_with(&format!("tombolo-{of}-"))) =>
            {
                &["SEE ALSO"]
            }
            _ => &["EXAMPLES", "SEE ALSO", "EXIT STATUS"],
        };
        for section in sections {
            assert!(text.contains(section), "{name} has no {section}");
        }
        assert!(!text.contains("EXTRA"), "{name}: a section without a meaning");
    }
    assert!(scratch.run("man").out.starts_with(".ie"), "a page for man(1)");
    for shell in ["bash", "zsh", "fish"] {
        let script = scratch.run(format!("completions {shell}")).succeeded();
        assert!(script.out.contains("umount") && script.out.contains("virtiofs"), "{shell}");
        assert!(script.out.contains("version"), "{shell}");
        for private in ["supervisor", "background-log"] {
            assert!(!script.out.contains(private), "{shell}: {private}");
        }
    }
}

#[test]
fn doctor_speaks_to_people_and_programs() {
    let scratch = Scratch::new();
    let told = scratch.run("doctor").succeeded();
    for ability in
        ["kernel", "FUSE", "file handles", "KVM", "QEMU", "UML", "user namespaces", "fanotify", "wake-ups"]
    {
        assert!(told.out.lines().any(|line| line.contains(ability)), "{ability} is not in\n{}", told.out);
    }
    let json = scratch.run("doctor --json").succeeded();
    let value = json.json();
    let findings = value["findings"].as_array().expect("a list");
    assert!(findings.iter().all(|finding| {
        let level = finding["level"].as_str().unwrap_or_default();
        ["ok", "warn", "missing"].contains(&level) && (level == "ok" || finding["mend"].is_string())
    }));
}

#[test]
fn unknown_schemes_are_told_and_no_names_of_files() {
    let scratch = Scratch::new();
    let told: &[&str] = &["unknown scheme s3://", "nfs://HOST"];
    let cases = [
        "serve s3://bucket/src --nfs 0 --state kept",
        "proxy s3://bucket/src --cache cache --nfs 0 --state kept",
        "disk s3://bucket/disk.img --vhost-user vm.sock",
        "disk info s3://bucket/disk.img",
        "disk convert s3://bucket/disk.img out.img",
        "disk convert plain s3://bucket/out.img",
        "clone s3://bucket/image vm",
        "vm start vm --disk s3://bucket/disk.img",
        "mount s3://bucket/src mnt",
        "ls s3://bucket/src",
    ];
    scratch.all_fail(&cases.map(|line| (line, 2, told)));
}
