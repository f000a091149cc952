//! A stranger's server: nfs-ganesha. It registers with rpcbind, which is one for each network, so each test runs again in namespaces of its
//! own, and what it starts ends with them. Needs root, `unshare`, `ip`, rpcbind and nfs-ganesha with its VFS plug-in; without them it is
//! skipped, and says why.

mod inside;
mod namespaces;
mod server;

use namespaces::run_inside;

#[test]
fn the_waists_cases_hold_over_a_strangers_server() {
    run_inside("inside::the_waists_cases");
}

#[test]
fn big_files_go_both_ways_as_they_are() {
    run_inside("inside::big_files_both_ways");
}

#[test]
fn a_hard_mount_outlives_a_restart_of_a_strangers_server() {
    run_inside("inside::a_restart_under_a_hard_mount");
}

#[test]
fn the_portmapper_leads_to_a_strangers_server() {
    run_inside("inside::found_through_the_portmapper");
}
