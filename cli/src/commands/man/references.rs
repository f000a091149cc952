//! What a manual says that the help does not: files, and other pages.

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
        "tombolo-doctor" => &[("/dev/fuse", "what mounts need"), FUSE_CONF],
        "tombolo-cp" => &[PART],
        "tombolo-disk-convert" => {
            &[PART, ("convert-NAME/record in the state directory", "how far a conversion into NAME has come")]
        }
        _ => &[],
    }
}

const PART: (&str, &str) =
    (".NAME.tombolo-part", "a file that is not complete yet, beside the place of NAME");
const CONTROL: (&str, &str) = (
    "$XDG_RUNTIME_DIR/tombolo/NAME.sock",
    "control sockets of running servers; without that variable in /run/tombolo for root, in /tmp/tombolo-UID for others",
);
const STATE: (&str, &str) = (
    "$XDG_STATE_HOME/tombolo/",
    "what outlives a restart; without that variable /var/lib/tombolo for root, ~/.local/state/tombolo for others",
);
const KEYS: (&str, &str) = (
    "NAME/handle-keys in the state directory",
    "what NFS file handles are signed with: secret; NAME is that of the server's first export",
);
const REPLIES: (&str, &str) = (
    "NAME/replies-EXPORT in the state directory",
    "which requests were performed, so that none is performed twice",
);
const LOG: (&str, &str) = (
    "mount-MOUNTPOINT/log in the state directory",
    "the log of a mount in the background, which goes to the system's log (/dev/log) too; the one before it is log.old",
);
const FUSE_CONF: (&str, &str) =
    ("/etc/fuse.conf", "user_allow_other there lets users other than root use allow_other");
const FSTAB: (&str, &str) =
    ("/etc/fstab", "mounts of the type tombolo, with a link from /sbin/mount.tombolo to the program");
const KEEPERS: (&str, &str) = (
    "$XDG_RUNTIME_DIR/tombolo/keepers/",
    "where the keepers of servers with --keep listen, by the names of their disks",
);
const LINKS: (&str, &str) =
    ("$XDG_RUNTIME_DIR/tombolo/links/", "where servers write themselves into the list");

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
