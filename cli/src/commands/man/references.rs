//! Files and related pages, which the help does not list.

type Files = &'static [(&'static str, &'static str)];

pub fn files(name: &str) -> Files {
    match name {
        "tombolo" => &[CONTROL, STATE],
        "tombolo-serve" => &[CONTROL, STATE, KEYS, REPLIES],
        "tombolo-mount" | "mount.tombolo" => &[CONTROL, LOG, FUSE_CONF, FSTAB],
        "tombolo-keys" | "tombolo-keys-list" | "tombolo-keys-rotate" | "tombolo-keys-retire" => &[KEYS],
        "tombolo-proxy" => &[CONTROL, STATE, KEYS, REPLIES],
        "tombolo-top" | "tombolo-umount" | "tombolo-tune" => &[CONTROL],
        "tombolo-upgrade" => &[KEEPERS],
        "tombolo-links" => &[LINKS],
        "tombolo-doctor" => &[("/dev/fuse", "device for FUSE mounts"), FUSE_CONF],
        "tombolo-cp" => &[PART],
        "tombolo-disk-convert" => {
            &[PART, ("convert-NAME/record in the state directory", "progress of a conversion into NAME")]
        }
        _ => &[],
    }
}

const PART: (&str, &str) = (".NAME.tombolo-part", "incomplete copy of NAME, in the same directory");
const CONTROL: (&str, &str) = (
    "$XDG_RUNTIME_DIR/tombolo/NAME.sock",
    "control sockets of running servers; if the variable is unset in /run/tombolo for root, otherwise in /tmp/tombolo-UID",
);
const STATE: (&str, &str) = (
    "$XDG_STATE_HOME/tombolo/",
    "persistent state; if the variable is unset /var/lib/tombolo for root, otherwise ~/.local/state/tombolo",
);
const KEYS: (&str, &str) = (
    "NAME/handle-keys in the state directory",
    "secret keys that sign NFS file handles; NAME is that of the server's first export",
);
const REPLIES: (&str, &str) =
    ("NAME/replies-EXPORT in the state directory", "executed requests, so that none is executed twice");
const LOG: (&str, &str) = (
    "mount-MOUNTPOINT/log in the state directory",
    "log of a background mount, also sent to the system log (/dev/log); the previous log is log.old",
);
const FUSE_CONF: (&str, &str) =
    ("/etc/fuse.conf", "user_allow_other permits allow_other for users other than root");
const FSTAB: (&str, &str) =
    ("/etc/fstab", "mounts of type tombolo; requires a link from /sbin/mount.tombolo to the program");
const KEEPERS: (&str, &str) = (
    "$XDG_RUNTIME_DIR/tombolo/keepers/",
    "control sockets of keepers (--keep), named after their disks and exports",
);
const LINKS: (&str, &str) = ("$XDG_RUNTIME_DIR/tombolo/links/", "registry of servers that offer links");

pub fn see_also(name: &str) -> &'static str {
    match name {
        "tombolo" => {
            "tombolo-serve(1), tombolo-mount(1), tombolo-cp(1), tombolo-top(1), tombolo-doctor(1), mount.tombolo(8)"
        }
        "tombolo-serve" => {
            "tombolo(1), tombolo-mount(1), tombolo-top(1), tombolo-keys(1), tombolo-links(1), nfs(5), mount(8), qemu(1)"
        }
        "tombolo-proxy" => {
            "tombolo(1), tombolo-serve(1), tombolo-cache(1), tombolo-image(1), tombolo-mount(1), tombolo-top(1), nfs(5)"
        }
        "tombolo-cache" | "tombolo-image" => "tombolo(1), tombolo-proxy(1)",
        "tombolo-mount" => {
            "tombolo(1), mount.tombolo(8), tombolo-umount(1), tombolo-tune(1), tombolo-top(1), nfs(5), fuse(8)"
        }
        "mount.tombolo" => "tombolo-mount(1), mount(8), fstab(5), nfs(5), systemd.mount(5), fuse(8)",
        "tombolo-umount" => "tombolo(1), tombolo-mount(1), umount(8), fuser(1)",
        "tombolo-upgrade" => "tombolo(1), tombolo-disk(1)",
        "tombolo-tune" => "tombolo(1), tombolo-mount(1), tombolo-top(1)",
        "tombolo-top" | "tombolo-links" => "tombolo(1), tombolo-serve(1), tombolo-mount(1), tombolo-tune(1)",
        "tombolo-keys" | "tombolo-keys-list" | "tombolo-keys-rotate" | "tombolo-keys-retire" => {
            "tombolo(1), tombolo-serve(1)"
        }
        "tombolo-cp" | "tombolo-mv" | "tombolo-rm" | "tombolo-ls" | "tombolo-cat" | "tombolo-stat"
        | "tombolo-du" | "tombolo-mkdir" => {
            "tombolo(1), tombolo-ls(1), tombolo-cat(1), tombolo-cp(1), tombolo-mv(1), tombolo-rm(1), tombolo-mkdir(1), \
             tombolo-stat(1), tombolo-du(1), tombolo-mount(1), nfs(5)"
        }
        _ => "tombolo(1)",
    }
}
