//! A third-party server: nfs-ganesha. It registers with rpcbind, of which a network has one, so each test
//! runs again in namespaces of its own, which also end its processes. Tests that act as a portmapper do the
//! same. Needs root, `unshare`, `ip`, rpcbind and nfs-ganesha with its VFS plug-in; skipped with the reason
//! if one is missing.

mod inside;
mod namespaces;
mod portmapper;
mod server;

use namespaces::{GANESHA, NETWORK, run_inside};
use tombolo_test_support::tests;

tests! {
    the_conformance_suite_passes_over_ganesha: run_inside("ganesha::inside::the_waists_cases", GANESHA);
    the_conformance_suite_passes_over_caches_of_ganesha: {
        run_inside("ganesha::inside::waist_cases_over_close_to_open_cache", GANESHA);
        run_inside("ganesha::inside::waist_cases_over_exclusive_cache", GANESHA);
    };
    big_files_are_exact_in_both_directions: run_inside("ganesha::inside::big_files_both_ways", GANESHA);
    a_hard_mount_survives_a_ganesha_restart:
        run_inside("ganesha::inside::a_restart_under_a_hard_mount", GANESHA);
    ganesha_is_found_through_the_portmapper:
        run_inside("ganesha::inside::found_through_the_portmapper", GANESHA);
    a_wrong_portmapper_reply_is_one_clear_line:
        run_inside("ganesha::portmapper::wrong_portmapper_results", NETWORK);
    portmapper_ports_are_used: run_inside("ganesha::portmapper::portmapper_reply_with_ports", NETWORK);
}
