//! Tests that run inside the namespaces.

use std::sync::Arc;
use std::time::Duration;

use tombolo_back_nfs_client::{NfsExport, Options, Ports};
use tombolo_conformance::waist::{Case, Needs, Setup, run_some};
use tombolo_core::fs::{Export, PermissionCheck, SyncScope};
use tombolo_layer_cache::{Contract, Options as CacheOptions};
use tombolo_nfs_client_tests::mount::{hard, world};

use crate::cached::cached;
use crate::clients::close;
use crate::conformance::{LACKS, MAY_SKIP};
use crate::ganesha::server::Ganesha;

/// Cases in which this server differs, with the difference.
const ITS_OWN_WAY: &[(&str, &str)] = &[
    ("links::a_directory_has_one_name", "it answers BADTYPE to the LINK of a directory"),
    ("attributes::a_size_is_for_files", "it answers BADTYPE to a directory's size"),
];

fn wanted(case: &Case) -> bool {
    match ITS_OWN_WAY.iter().find(|(name, _)| *name == case.name) {
        None => true,
        Some((name, why)) => {
            eprintln!("left out {name}: {why}");
            false
        }
    }
}

#[test]
#[ignore = "run in namespaces of its own"]
fn the_waists_cases() {
    let ganesha = Ganesha::start();
    let export: Arc<dyn Export> = Arc::new(ganesha.mount(hard()));
    let setup = Setup { owners: true, checks: PermissionCheck::BackEnd, lacks: LACKS };
    run_some(&export, setup, wanted).expect("the client over nfs-ganesha", MAY_SKIP);
}

fn run_over_a_cache(contract: Contract) {
    let ganesha = Ganesha::start();
    let options = CacheOptions { contract, ..CacheOptions::default() };
    let (_dir, cache) = cached(&ganesha.mount(hard()), options);
    let export: Arc<dyn Export> = cache;
    let lacks = LACKS.union(Needs::FORGETS);
    let setup = Setup { owners: true, checks: PermissionCheck::BackEnd, lacks };
    let may_skip = [MAY_SKIP, &["needs Needs(FORGETS)"]].concat();
    run_some(&export, setup, wanted).expect("a cache over nfs-ganesha", &may_skip);
}

#[test]
#[ignore = "run in namespaces of its own"]
fn waist_cases_over_close_to_open_cache() {
    run_over_a_cache(Contract::CloseToOpen);
}

#[test]
#[ignore = "run in namespaces of its own"]
fn waist_cases_over_exclusive_cache() {
    run_over_a_cache(Contract::Exclusive);
}

/// Returns bytes that depend on their offset.
fn pattern(len: usize) -> Vec<u8> {
    (0..len as u64 / 8).flat_map(|word| word.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()).collect()
}

#[test]
#[ignore = "run in namespaces of its own"]
fn big_files_both_ways() {
    const LEN: usize = 96 << 20;
    let ganesha = Ganesha::start();
    let world = world(Arc::new(ganesha.mount(Options::default())));
    let bytes = pattern(LEN);
    let file = world.file("out");
    for (index, piece) in bytes.chunks(300_000).enumerate() {
        world.write_all(file, index as u64 * 300_000, piece);
    }
    close(&world, file).expect("closed");
    let there = ganesha.tree.path().join(world.name()).join("out");
    assert!(std::fs::read(there).expect("the file") == bytes, "not what was written");

    std::fs::write(ganesha.tree.path().join(world.name()).join("in"), &bytes).expect("written");
    assert!(world.contents("in") == bytes, "not what is there");
}

#[test]
#[ignore = "run in namespaces of its own"]
fn a_restart_under_a_hard_mount() {
    const LEN: usize = 32 << 20;
    let mut ganesha = Ganesha::start();
    let world = world(Arc::new(ganesha.mount(Options::default())));
    let bytes = pattern(LEN);
    let file = world.file("file");
    let writer = std::thread::spawn({
        let (world, bytes) = (world.clone(), bytes.clone());
        move || {
            for (index, piece) in bytes.chunks(1 << 20).enumerate() {
                world.write_all(file, (index << 20) as u64, piece);
                std::thread::sleep(Duration::from_millis(20));
            }
            world.fs.fsync(&world.cx, file, SyncScope::All).wait().expect("synced");
        }
    });
    for _ in 0..2 {
        std::thread::sleep(Duration::from_millis(200));
        ganesha.kill();
        std::thread::sleep(Duration::from_millis(300));
        ganesha.restart();
    }
    writer.join().expect("all is written in the end");
    let there = ganesha.tree.path().join(world.name()).join("file");
    assert!(std::fs::read(there).expect("the file") == bytes, "not what was written");
    let reader = world.reader(file.node);
    assert!(world.read_all(reader, 0, LEN) == bytes, "not what is there");
    world.release(reader);
    close(&world, file).expect("closed");
}

#[test]
#[ignore = "run in namespaces of its own"]
fn found_through_the_portmapper() {
    let ganesha = Ganesha::start();
    let server = ganesha.address(Ports::Portmapper { nfs: None });
    let export = NfsExport::mount(&server, ganesha.export(), Options::default()).expect("mounted");
    let world = world(Arc::new(export));
    let node = world.file_with("file", b"contents");
    assert_eq!(world.contents(node), b"contents");
}
