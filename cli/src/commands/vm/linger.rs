//! Effect of a logout on the VMs that were started in the login session.

use std::env;
use std::path::Path;

use tombolo_host_service::control;
use tombolo_sys::creds;

use crate::failure::Failure;

/// Directory of the users' runtime directories; each is removed with the user's last login session.
const OF_SESSIONS: &str = "/run/user";

/// Directory with a file per user whose runtime directory persists (loginctl(1), enable-linger).
const LINGERING: &str = "/var/lib/systemd/linger";

/// Warns on standard error about the effect of a logout, if any.
pub fn tell() {
    let user = ["USER", "LOGNAME"].iter().find_map(env::var_os);
    let lingers = user.is_some_and(|user| Path::new(LINGERING).join(user).exists());
    let is_root = creds::own_ids().0 == 0;
    if let Some(cost) = cost(&control::default_directory(), lingers || is_root) {
        cost.print();
    }
}

/// Returns the effect of a logout on a VM with its sockets in this directory; `None` if there is none.
fn cost(sockets: &Path, lingers: bool) -> Option<Failure> {
    let reason = "its sockets are removed with the session: it can no longer be suspended, and if logind kills processes (KillUserProcesses=yes) it is powered off";
    let keeps = "run loginctl enable-linger before logging out";
    (sockets.starts_with(OF_SESSIONS) && !lingers)
        .then(|| Failure::cannot("keep the VM running after logout", reason).remedy(keeps))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logout_warning_only_for_session_sockets() {
        let said = cost(Path::new("/run/user/1000/tombolo"), false).expect("it costs something");
        assert!(said.to_string().contains("loginctl enable-linger"), "{said}");
        assert!(cost(Path::new("/run/user/1000/tombolo"), true).is_none());
        for elsewhere in ["/tmp/tombolo-1000", "/run/tombolo"] {
            assert!(cost(Path::new(elsewhere), false).is_none(), "{elsewhere}");
        }
    }
}
