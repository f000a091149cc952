//! Disks in a configuration file: several per server, together with directories.

use std::fs;

use crate::common::{Scratch, http};
use crate::disk::{DISK_BYTES, IN, OUT, ask, guest, hint, run, with_image};

/// Creates a scratch directory with two images and this configuration file.
fn with_file(text: &str) -> Scratch {
    let scratch = with_image();
    fs::copy(scratch.path("vm.img"), scratch.path("data.img")).expect("copy");
    fs::write(scratch.path("serve.toml"), text).expect("write");
    scratch
}

fn size(url: &str) -> u64 {
    run("nbdinfo", &["--size", url]).trim().parse().expect("a size")
}

#[test]
fn several_disks_and_a_directory_have_one_server() {
    let scratch = with_file(
        "dir = ['tree']\nvirtiofs = ['fs.sock']\nmetrics = '0'\n\
         [[disk]]\nfile = 'vm.img'\nvhost-user = ['vm.sock']\nserial = 'root'\nqueues = 2\n\
         [[disk]]\nfile = 'data.img'\nname = 'data'\nnbd = ['./data.nbd']\nblock-size = '4K'\n",
    );
    let before = scratch.listing();
    let server = scratch.serve_until("serve --config serve.toml", "ready metrics");
    server.says(&[
        format!("ready virtiofs {} tag=tombolo export=/tree\n", scratch.text("fs.sock")),
        format!("ready vhost-user-blk {} disk=vm.img size={DISK_BYTES}\n", scratch.text("vm.sock")),
        "vhost-user-blk-pci,chardev=disk0,num-queues=2".to_owned(),
        "/dev/disk/by-id/virtio-root".to_owned(),
        format!("ready nbd unix:{} disk=data size={DISK_BYTES}\n", scratch.text("data.nbd")),
        format!("ready control {}\n", scratch.text("run/tombolo/tree.sock")),
    ]);

    let (mut driver, mut queue) = guest(&scratch);
    assert_eq!(ask(&mut queue, OUT, 7, &[5; 512]).1, 0);
    let url = hint(&server.said, "libnbd:     nbdinfo").to_owned();
    run("qemu-io", &["-f", "raw", "-c", "write -P 8 64k 4k", &url]);
    assert_eq!(fs::read(scratch.path("vm.img")).expect("read")[7 * 512..][..512], [5; 512]);
    assert_eq!(fs::read(scratch.path("data.img")).expect("read")[64 << 10..][..4096], [8; 4096]);

    // Each disk is resized separately.
    scratch.run("disk resize data.img 2M").succeeded();
    assert_eq!(
        (size(&url), driver.config(0, 8).expect("the size")),
        (2 << 20, (DISK_BYTES >> 9).to_le_bytes().to_vec())
    );
    scratch.run("disk resize vm.img 3M").succeeded();
    assert_eq!(
        (size(&url), driver.config(0, 8).expect("the size")),
        (2 << 20, (3u64 << 20 >> 9).to_le_bytes().to_vec())
    );
    assert_eq!(ask(&mut queue, IN, 7, &[0; 512]), (vec![5; 512], 0));
    scratch.run("disk resize plain 2M").failed(1, &["no server"]);

    let top = scratch.run("top --once").succeeded();
    top.says(&["/tree by virtiofs ", "vm.img by vhost-user-blk ", "data by nbd ", "IOPS ", " under way 0\n"]);
    let top = scratch.top_of("");
    let exports = top["exports"].as_array().expect("exports");
    let of = |name: &str| exports.iter().find(|export| export["name"] == name).expect("an export");
    assert_eq!((&of("vm.img")["under_way"], &of("data")["under_way"]), (&0.into(), &0.into()));
    assert!(of("/tree").get("under_way").is_none());
    let written = of("data")["operations"].as_array().expect("operations");
    let written = written.iter().find(|operation| operation["operation"] == "write").expect("a write");
    assert_eq!((&written["bytes"], &written["count"]), (&4096.into(), &1.into()));
    assert!(written["p99_ns"].as_u64().is_some());
    let metrics = http(server.metrics_address(), "/metrics");
    assert!(metrics.contains("tombolo_disk_requests_under_way{export=\"data\"} 0\n"), "{metrics}");

    drop((driver, queue));
    server.stop();
    assert_eq!(scratch.listing(), before);
}

#[test]
fn disk_only_server_with_readonly_serves_read_only() {
    let scratch = with_file(
        "readonly = true\n[[disk]]\nfile = 'vm.img'\nnbd = ['./a.nbd']\n[[disk]]\nfile = 'data.img'\nnbd = ['./b.nbd']\n",
    );
    let server = scratch.serve("serve --config serve.toml");
    assert_eq!(server.said.matches(&format!(" size={DISK_BYTES} read-only\n")).count(), 2, "{}", server.said);
    assert!(server.said.contains(&scratch.text("run/tombolo/vm.img.sock")), "{}", server.said);
    let url = format!("nbd+unix:///data.img?socket={}", scratch.text("b.nbd"));
    assert!(run("nbdinfo", &[&url]).contains("is_read_only: true"));
    server.stop();
}

#[test]
fn invalid_disk_table_names_key_and_leaves_nothing() {
    let reached = "[[disk]]\nfile = 'vm.img'\nnbd = ['./vm.nbd']\n";
    for (text, code, said) in [
        (
            "[[disk]]\nfile = 'vm.img'\n".to_owned(),
            2,
            &["no endpoint given for disk vm.img", "--nbd ADDR"][..],
        ),
        (
            "[[disk]]\nfile = 'vm.img'\nsockets = ['s']\n".to_owned(),
            2,
            &["line 3", "unknown field `sockets`"],
        ),
        (format!("{reached}serial = 'a b'\n"), 2, &["line 4: serial: ", "visible ASCII characters"]),
        (format!("{reached}{reached}"), 2, &["duplicate disk name vm.img", "rename one"]),
        (
            format!("{reached}[[disk]]\nfile = 'data.img'\nnbd = ['./vm.nbd']\n"),
            1,
            &["vm.nbd", "another server is listening"],
        ),
        (reached.replace("vm.img", "missing.img"), 1, &["missing.img"]),
        (format!("nfs = ['0']\n{reached}"), 2, &["no directory given"]),
        (
            format!("{reached}[[disk]]\nfile = 'vm.img'\nname = 'again'\nnbd = ['./n']\n"),
            1,
            &["vm.img is in use"],
        ),
    ] {
        let scratch = with_file(&text);
        let before = scratch.listing();
        scratch.run("serve --config serve.toml").failed(code, said);
        assert_eq!(scratch.listing(), before, "something was left behind by {text}");
    }
}
