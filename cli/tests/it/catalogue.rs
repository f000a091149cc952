//! Image catalogues: `tombolo image list` and `tombolo clone --needs`.

use std::fs;
use std::os::unix::fs::symlink;

use crate::common::Scratch;

const IMAGES: &str = "version = 1\n
[[image]]\nname = \"large\"\nos = \"debian\"\nmem = \"1G\"\napp = [\"gcc\", \"make\"]\n
[[image]]\nname = \"small\"\nos = \"debian\"\nmem = \"512M\"\ndisk = \"2G\"\ncpus = 2\napp = \"gcc\"\n";

#[test]
fn clone_finds_image_by_needs_locally_and_remotely() {
    let scratch = Scratch::new();
    fs::write(scratch.path("tree/catalogue.toml"), IMAGES).expect("write");
    let (server, url) = scratch.serve_nfs();
    for dir in ["tree", &url] {
        let list = scratch.run(format!("image list {dir}")).succeeded();
        let lines: Vec<_> =
            list.out.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()).collect();
        assert_eq!(lines[1], ["large", "debian", "1.0G", "-", "-", "app=gcc,make"]);
        assert_eq!(lines[2], ["small", "debian", "512M", "2.0G", "2", "app=gcc"]);
        // The files are missing; the failure names the image chosen.
        for (needs, name) in [("os=debian,app=gcc", "small"), ("mem=600M", "large")] {
            let cloned = scratch.run(format!("clone {dir} x --needs {needs}"));
            assert_eq!(cloned.code, Some(1));
            assert!(cloned.err.contains(&format!("/{name}")), "{}", cloned.err);
        }
        scratch.run(format!("clone {dir} x --needs app=make,mem=2G")).failed(
            1,
            &["available: large, small", "nearest is large, without mem=2G (it has 1.0G)", "image list"],
        );
    }
    let list = scratch.run(format!("image list --json {url}")).succeeded();
    let told = list.json();
    assert_eq!(told[1]["name"], "small");
    assert_eq!(
        (&told[1]["properties"]["mem"], &told[1]["properties"]["cpus"]),
        (&(512 << 20).into(), &2.into())
    );
    assert_eq!(told[0]["properties"]["app"][1], "make");
    server.stop();
}

#[test]
fn catalogue_follows_no_links_and_is_bounded() {
    let scratch = Scratch::new();
    for dir in ["long", "out", "linked", "unknown"] {
        fs::create_dir(scratch.path(dir)).expect("mkdir");
    }
    let write = |path: &str, text: &str| fs::write(scratch.path(path), text).expect("write");
    write("out/catalogue.toml", &IMAGES.replace("\"small\"", "\"../small\""));
    write("unknown/catalogue.toml", &format!("include = \"/etc/passwd\"\n{IMAGES}"));
    write("long/catalogue.toml", &format!("{IMAGES}{}", "#\n".repeat(200_000)));
    write("linked/catalogue.toml", IMAGES);
    symlink("/etc", scratch.path("linked/small")).expect("link");
    scratch.all_fail(&[
        ("image list tree", 1, &["tree/catalogue.toml", "no such file"]),
        ("image list out", 1, &["out/catalogue.toml", "../small", "letters, digits"]),
        ("image list unknown", 1, &["include"]),
        ("clone out x --needs os=debian", 1, &["../small"]),
        ("image list long", 1, &["exceeds 262144 bytes"]),
        ("clone linked x --needs os=debian", 1, &["linked/small is not a directory"]),
        ("clone linked x --needs os", 2, &["os=debian"]),
        ("clone linked x --needs mem=much", 2, &["512M"]),
    ]);
}
