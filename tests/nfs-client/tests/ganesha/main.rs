//! A stranger's server: nfs-ganesha. It registers with rpcbind, which is one for each network, so each test runs again in namespaces of its
//! own, and what it starts ends with them. So do the tests that are a portmapper themselves. Needs root, `unshare`, `ip`, rpcbind and nfs-ganesha with its VFS plug-in; without them it is
//! skipped, and says why.

mod inside;
mod namespaces;
mod portmapper;
mod server;

use namespaces::{GANESHA, NETWORK, run_inside};

#[test]
fn the_waists_cases_hold_over_a_strangers_server() {
    run_inside("inside::the_waists_cases", GANESHA);
}

#[test]
fn big_files_go_both_ways_as_they_are() {
    run_inside("inside::big_files_both_ways", GANESHA);
}

#[test]
fn a_hard_mount_outlives_a_restart_of_a_strangers_server() {
    run_inside("inside::a_restart_under_a_hard_mount", GANESHA);
}

#[test]
fn the_portmapper_leads_to_a_strangers_server() {
    run_inside("inside::found_through_the_portmapper", GANESHA);
}

#[test]
fn a_portmapper_that_lies_is_one_clear_line() {
    run_inside("portmapper::one_that_lies", NETWORK);
}

#[test]
fn a_portmapper_leads_to_the_ports_that_it_says() {
    run_inside("portmapper::one_that_leads_to_ports", NETWORK);
}
