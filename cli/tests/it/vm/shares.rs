//! Shares of a guest.

use std::fs;

use super::{Bed, Flaw};
use crate::common::{Ran, processes_with, signal, until};

#[test]
fn vm_survives_end_of_share_server() {
    let bed = Bed::new();
    bed.make_image();
    fs::create_dir_all(bed.path("data=/of")).expect("create");
    let told = bed.vmm("one", Flaw::None);
    bed.run("clone image one --net none --qemu ./vmm --share src=data=/of").succeeded();
    // The guest finds the share, then its identity with the tag.
    let told: Vec<String> = told.try_iter().map(|(command, _)| command).collect();
    let place = |word: &str| told.iter().position(|command| command == word);
    assert!(place("chardev-add") < place("cont"), "{told:?}");
    assert_eq!(told.iter().filter(|command| *command == "device_add").count(), 2, "{told:?}");
    let identity = fs::read_to_string(bed.vm("one").join("identity")).expect("read");
    assert!(identity.contains("\nshare src\n"), "{identity}");
    let socket = bed.path("run/tombolo/vm-one/share-0");
    assert!(socket.exists());
    let pids = || processes_with(&format!("{},tag=src", socket.display()));
    assert!(!pids().is_empty());
    pids().into_iter().for_each(|pid| signal(pid, "KILL"));
    until("the server has gone", || pids().is_empty());
    assert!(bed.is("one", "running"), "{}", bed.list());
    // A guest finds it again after a reset.
    fs::remove_file(bed.monitor("one")).expect("there");
    let told = bed.vmm("one", Flaw::None);
    bed.end("one", "reset");
    until("it runs again", || told.try_iter().any(|(command, _)| command == "cont"));
    assert!(!pids().is_empty() && bed.is("one", "running"), "{}", bed.list());
    bed.run("vm suspend one").succeeded();
    assert!(!socket.exists());
    bed.resume("one");
    assert!(!pids().is_empty());
    // A hanging server does not affect the guest.
    pids().into_iter().for_each(|pid| signal(pid, "STOP"));
    bed.run("vm suspend one").succeeded();
    assert!(bed.is("one", "suspended"), "{}", bed.list());
    until("the server has gone", || pids().is_empty());
}

#[test]
fn failed_share_does_not_affect_guest() {
    let bed = Bed::new();
    bed.make_image();
    fs::create_dir(bed.path("data")).expect("create");
    let told = bed.vmm("one", Flaw::NoShare);
    let made = bed.run("clone image one --net user --qemu ./vmm --share src=data");
    assert_eq!(made.code, Some(0), "{}", made.err);
    assert!(made.err.contains("share src") && made.err.contains("running without it"), "{}", made.err);
    // The share, the identity and the card.
    assert_eq!(told.try_iter().filter(|(command, _)| command == "device_add").count(), 3);
    bed.run("vm suspend one").succeeded();
}

#[test]
fn vm_with_unserveable_share_does_not_start() {
    let bed = Bed::new();
    bed.make_image();
    let line = "clone image one --net none --qemu ./vmm --share src=missing";
    bed.run(line).failed(1, &["missing", "No such file"]);
    assert!(!bed.vm("one").exists(), "{}", bed.list());
    for wrong in ["src", "a b=data"] {
        let mut command = bed.tombolo("clone image two --share");
        command.arg(wrong);
        Ran::new(command).failed(2, &["TAG"]);
    }
    bed.run("clone image two --share src=data --share src=other").failed(2, &["each with its own tag"]);
}
