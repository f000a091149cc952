//! What becomes of VMs when the session ends that has started them.

use std::env;
use std::path::Path;

use tombolo_host_service::control;
use tombolo_sys::creds;

use crate::failure::Failure;

/// Where each user's directory of a session is, which goes with the last session.
const OF_SESSIONS: &str = "/run/user";

/// A file for each user whose directory stays (loginctl(1), enable-linger).
const LINGERING: &str = "/var/lib/systemd/linger";

/// Says on standard error what a logout costs a VM, where it costs something.
pub fn tell() {
    let user = ["USER", "LOGNAME"].iter().find_map(env::var_os);
    let lingers = user.is_some_and(|user| Path::new(LINGERING).join(user).exists());
    let is_root = creds::own_ids().0 == 0;
    if let Some(cost) = cost(&control::default_directory(), lingers || is_root) {
        cost.print();
    }
}

/// What a logout costs a VM whose sockets are in this directory.
fn cost(sockets: &Path, lingers: bool) -> Option<Failure> {
    let reason = "its sockets go with the session: it cannot be suspended then, and where logind kills processes (KillUserProcesses=yes) it ends as if its power went";
    let keeps = "loginctl enable-linger, before that, keeps it as it is";
    (sockets.starts_with(OF_SESSIONS) && !lingers)
        .then(|| Failure::cannot("keep the VM whole over a logout", reason).remedy(keeps))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_logout_costs_only_what_has_its_sockets_in_a_session() {
        let said = cost(Path::new("/run/user/1000/tombolo"), false).expect("it costs something");
        assert!(said.to_string().contains("loginctl enable-linger"), "{said}");
        assert!(cost(Path::new("/run/user/1000/tombolo"), true).is_none());
        for elsewhere in ["/tmp/tombolo-1000", "/run/tombolo"] {
            assert!(cost(Path::new(elsewhere), false).is_none(), "{elsewhere}");
        }
    }
}
