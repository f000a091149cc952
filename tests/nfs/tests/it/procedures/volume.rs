//! FSSTAT, FSINFO, PATHCONF.

use tombolo_nfs_tests::client::{Expect, Transport};
use tombolo_nfs_tests::fixture::{Fixture, on_each};
use tombolo_wire_nfs3::results::Properties;

on_each!(fsstat_reports_space, |fixture| {
    let stat = fixture.nfs.fsstat(&fixture.root).done();
    assert_eq!(stat.attributes, Some(fixture.attr(&fixture.root)));
    assert!(stat.total_bytes > 0 && stat.free_bytes <= stat.total_bytes);
    assert!(stat.available_bytes <= stat.free_bytes);
    assert!(stat.free_files <= stat.total_files && stat.available_files <= stat.free_files);
});

#[test]
fn fsstat_matches_the_host() {
    let fixture = Fixture::on_host();
    let stat = fixture.nfs.fsstat(&fixture.root).done();
    let host = rustix::fs::statvfs(fixture.on_disk("").expect("on the host")).expect("statvfs");
    assert_eq!(stat.total_bytes, host.f_blocks * host.f_frsize);
    assert_eq!(stat.total_files, host.f_files);
}

on_each!(fsinfo_reports_the_servers_limits, |fixture| {
    let info = fixture.nfs.fsinfo(&fixture.root).done();
    assert_eq!(info.attributes, Some(fixture.attr(&fixture.root)));
    assert!(info.read_max >= 1 << 20 && info.write_max >= 1 << 20);
    assert!(info.read_preferred <= info.read_max && info.write_preferred <= info.write_max);
    assert!(info.read_multiple > 0 && info.write_multiple > 0 && info.readdir_preferred >= 4096);
    assert!(info.file_size_max > u64::from(u32::MAX));
    let wanted = Properties::LINK | Properties::SYMLINK | Properties::HOMOGENEOUS | Properties::CAN_SET_TIME;
    assert_eq!(info.properties, wanted);
    let datagrams = fixture.server.nfs_over(Transport::Udp).fsinfo(&fixture.root).done();
    assert!(datagrams.read_max < 1 << 16, "a reply has to fit a datagram");
});

on_each!(pathconf_reports_the_limits, |fixture| {
    let limits = fixture.nfs.pathconf(&fixture.root).done();
    assert_eq!(limits.attributes, Some(fixture.attr(&fixture.root)));
    assert_eq!(limits.name_max, 255);
    assert!(limits.link_max >= 1000 && limits.no_trunc && limits.chown_restricted);
    assert!(!limits.case_insensitive && limits.case_preserving);
});
