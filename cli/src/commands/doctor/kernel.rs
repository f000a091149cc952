//! Features of the kernel, and privileges of this process.

use std::fs;
use std::path::Path;

use tombolo_back_local_dir::Options as DirOptions;
use tombolo_core::Limits;
use tombolo_host_runtime::descriptors::DescriptorBudget;
use tombolo_sys::{creds, probe, process};

use super::Finding;

pub(super) fn findings() -> Vec<Finding> {
    vec![
        version(),
        proc(),
        shared_memory(),
        open_files(),
        file_handles(),
        users(),
        fanotify(),
        io_uring(),
        user_namespaces(),
    ]
}

/// Returns the kernel's release and version, for features that cannot be probed.
pub(super) fn release() -> (String, (u32, u32)) {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    (release, version)
}

fn version() -> Finding {
    let (release, version) = release();
    if version >= (5, 6) {
        Finding::ok("kernel", release).essential()
    } else {
        let found = format!("{release}, lacks openat2");
        Finding::missing("kernel", found, "run Linux 5.6 or newer").essential()
    }
}

fn proc() -> Finding {
    if Path::new("/proc/self/fd").is_dir() {
        Finding::ok("proc", "/proc is mounted").essential()
    } else {
        Finding::missing("proc", "/proc is not mounted", "mount -t proc proc /proc").essential()
    }
}

fn shared_memory() -> Finding {
    match probe::sealed_memory() {
        Ok(()) => Finding::ok("shared memory", "memfd with seals, for guest memory").essential(),
        Err(error) => Finding::missing(
            "shared memory",
            format!("memfd_create: {error}"),
            "use a kernel with CONFIG_MEMFD_CREATE, and a sandbox that allows it",
        )
        .essential(),
    }
}

/// Descriptors required by a server of a few guests that run builds.
const OPEN_FILES_WANTED: u64 = 65_536;

fn open_files() -> Finding {
    let limit = process::open_file_limit();
    let account = DescriptorBudget::new(limit.hard);
    let _nodes = account.cache(DirOptions::default().descriptors);
    let alone = account.session().map_or(0, |share| share.most() as u64).min(Limits::default().opens);
    let found = format!("up to {}; a single client may open {alone}", limit.hard);
    if limit.hard >= OPEN_FILES_WANTED {
        Finding::ok("open files", found)
    } else {
        Finding::warn(
            "open files",
            found,
            "raise the limit: ulimit -Hn 524288, or LimitNOFILE=524288 in the unit",
        )
    }
}

/// Numbers of capabilities (capabilities(7)).
const CAP_DAC_READ_SEARCH: u32 = 2;
const CAP_SYS_ADMIN: u32 = 21;

fn has_capability(number: u32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let set = effective.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).unwrap_or(0);
    set >> number & 1 == 1
}

fn file_handles() -> Finding {
    if has_capability(CAP_DAC_READ_SEARCH) {
        return Finding::ok(
            "file handles",
            "CAP_DAC_READ_SEARCH: nodes need no descriptor where the file system supports handles",
        );
    }
    Finding::warn(
        "file handles",
        "no CAP_DAC_READ_SEARCH: each live node needs a descriptor",
        "run as root, or setcap cap_dac_read_search+ep on the program",
    )
}

fn users() -> Finding {
    if creds::may_assume() {
        return Finding::ok("users", "can act as any requesting user");
    }
    Finding::warn("users", "acts as the server's user only, which owns new files", "run as root")
}

fn fanotify() -> Finding {
    match probe::fanotify() {
        Ok(()) if has_capability(CAP_SYS_ADMIN) => Finding::ok(
            "fanotify",
            "can watch for changes by other processes (--host-watch, coherence=push); while a mount uses it, each \
                 write and each new file on a watched file system costs its process some microseconds",
        ),
        Ok(()) => Finding::warn("fanotify", "single directories only, not whole file systems", "run as root"),
        Err(error) => Finding::warn(
            "fanotify",
            format!("{error}: changes by other processes are detected late"),
            "run as root, with CONFIG_FANOTIFY in the kernel",
        ),
    }
}

fn io_uring() -> Finding {
    match probe::io_uring() {
        Ok(()) => Finding::ok("io_uring", "available"),
        Err(error) => Finding::warn(
            "io_uring",
            format!("{error}"),
            "sysctl kernel.io_uring_disabled=0, and a sandbox that allows it",
        ),
    }
}

/// Switches that forbid unprivileged user namespaces, with the permissive value.
const NAMESPACE_SWITCHES: &[(&str, &str)] =
    &[("kernel/unprivileged_userns_clone", "1"), ("kernel/apparmor_restrict_unprivileged_userns", "0")];

fn user_namespaces() -> Finding {
    let setting = |name: &str| fs::read_to_string(Path::new("/proc/sys").join(name)).ok();
    let limit: u64 =
        setting("user/max_user_namespaces").and_then(|text| text.trim().parse().ok()).unwrap_or(0);
    if limit == 0 {
        let mend = "sysctl user.max_user_namespaces=10000, with CONFIG_USER_NS in the kernel";
        return Finding::warn("user namespaces", "not permitted", mend);
    }
    for (name, wanted) in NAMESPACE_SWITCHES {
        if setting(name).is_some_and(|value| value.trim() != *wanted) {
            let mend = format!("sysctl {}={wanted}", name.replace('/', "."));
            return Finding::warn("user namespaces", "root only", mend);
        }
    }
    Finding::ok("user namespaces", format!("up to {limit}"))
}
