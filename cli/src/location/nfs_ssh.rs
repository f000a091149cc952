//! Trees of other hosts through ssh(1): `nfs+ssh://[USER@]HOST[:PORT]/PATH`.
//!
//! ssh runs `tombolo serve --stdio` on the other host, and the standard streams of ssh are the connection.
//! Each connection has its own ssh process. Of the servers on the other host one serves, and the others
//! forward their streams to it (`assembly::servers::stdio`).

use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::Arc;

use tombolo_back_nfs_client::{MountError, NfsExport};
use tombolo_host_rpc::client::{CallError, Tunnel, TunnelFault};

use super::nfs::client_options;
use super::nfs_options::{NfsOption, NfsOptions};
use super::{NfsUrl, NotMounted, OpenOptions, Opened, Reachability, Ssh};

/// Export name of the only directory served.
const ROOT: &str = "/";

/// Options that make ssh non-interactive, since there may be no terminal, and disable forwardings configured
/// for logins.
const SSH_WORDS: &[&str] =
    &["-T", "-x", "-oBatchMode=yes", "-oClearAllForwardings=yes", "-oConnectTimeout=15"];

/// Opens the path, with the other host's root as export, so that links resolve as on that host.
pub fn open(url: &NfsUrl, ssh: &Ssh, options: &OpenOptions) -> Result<Opened, NotMounted> {
    let export = Arc::new(served(url, ssh, b"/", options)?);
    let path = url.path.strip_prefix(b"/").unwrap_or(&url.path).to_vec();
    Ok(Opened { export: export.clone(), path, nfs: Some(export) })
}

/// Mounts the directory of the URL.
pub fn mount(url: &NfsUrl, ssh: &Ssh, options: &OpenOptions) -> Result<NfsExport, NotMounted> {
    served(url, ssh, &url.path, options)
}

fn served(url: &NfsUrl, ssh: &Ssh, dir: &[u8], options: &OpenOptions) -> Result<NfsExport, NotMounted> {
    let asked = url.options.clone().then(&options.nfs);
    url.check(&asked).map_err(NotMounted::new)?;
    let asked = options.limited(asked);
    let tunnel = tunnel(url, ssh, dir, &asked);
    let program = tunnel.program();
    NfsExport::mount_through(&tunnel, ROOT, client_options(&asked, options.read_only))
        .map_err(|error| not_mounted(&error, &program))
}

fn tunnel(url: &NfsUrl, ssh: &Ssh, dir: &[u8], asked: &NfsOptions) -> Arc<Tunnel> {
    let command =
        asked.last(|option| if let NfsOption::SshCommand(said) = option { Some(said) } else { None });
    let command = command.unwrap_or_else(|| "ssh".into());
    let remote =
        asked.last(|option| if let NfsOption::RemoteProgram(said) = option { Some(said) } else { None });
    let mut words = command.split_whitespace().map(OsString::from);
    let program = words.next().unwrap_or_default();
    let mut words: Vec<_> = words.chain(SSH_WORDS.iter().map(OsString::from)).collect();
    if let Some(port) = url.port {
        words.extend(["-p".into(), port.to_string().into()]);
    }
    if let Some(user) = &ssh.user {
        words.extend(["-l".into(), user.into()]);
    }
    words.extend(["--".into(), url.host.as_str().into()]);
    // No user is squashed: one who may log in as root has all rights already, unless a forced command of the
    // user's key (sshd(8)) restricts them.
    let remote = remote.unwrap_or_else(|| "tombolo".into());
    words.push(format!("{remote} serve --stdio --squash none").into());
    words.push(OsString::from_vec([&quoted(dir)[..], b"=", ROOT.as_bytes()].concat()));
    let user = ssh.user.as_ref().map_or(String::new(), |user| format!("{user}@"));
    let label = format!("{user}{}:{}", url.host, OsStr::from_bytes(dir).to_string_lossy());
    Tunnel::new(label, program, words)
}

/// Quotes one word for the remote shell.
fn quoted(word: &[u8]) -> Vec<u8> {
    let parts: Vec<_> = word.split(|byte| *byte == b'\'').collect();
    [b"'", &parts.join(&b"'\\''"[..])[..], b"'"].concat()
}

fn not_mounted(error: &MountError, program: &str) -> NotMounted {
    match error {
        MountError::Unreachable { source: CallError::NoTunnel { source, .. }, .. } => ended(source),
        MountError::Unreachable { source: CallError::Unreachable { source, .. }, .. }
            if matches!(source.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied) =>
        {
            NotMounted {
                remedy: Some("install the OpenSSH client, or name another program with ssh=COMMAND"),
                ..NotMounted::new(format!("cannot run {program}: {}", plain(source.kind())))
            }
        }
        error => NotMounted::from(error),
    }
}

fn plain(kind: ErrorKind) -> &'static str {
    if kind == ErrorKind::NotFound { "no such program" } else { "permission denied" }
}

/// Classifies the end of ssh: code 255 is ssh's own failure, 126 and 127 mean that the shell could not run
/// the program or did not find it, and others come from the remote server.
fn ended(fault: &TunnelFault) -> NotMounted {
    let said = fault.last_line.strip_prefix("tombolo: ").map_or_else(|| fault.to_string(), str::to_owned);
    let says = |words: &str| fault.last_line.contains(words);
    let failed = NotMounted::new(said.clone());
    match fault.code {
        Some(126 | 127) => NotMounted {
            remedy: Some("install tombolo on that host, or give its path with tombolo=PROGRAM"),
            ..failed
        },
        Some(255) if says("Permission denied") || says("Too many authentication failures") => NotMounted {
            remedy: Some("enable non-interactive login: a key in the agent, or ssh=\"ssh -i KEY\""),
            ..failed
        },
        Some(255) if says("Host key verification failed") => NotMounted {
            remedy: Some("connect with ssh manually once, as the same user, and verify the host key"),
            ..failed
        },
        Some(255) if says("Could not resolve hostname") => {
            NotMounted { server: Reachability::Unresolved, ..failed }
        }
        Some(255) | None => NotMounted::unreachable(said),
        Some(_) => failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_is_what_a_shell_there_takes() {
        let url: NfsUrl = "nfs+ssh://joe@[::1]:2022/it's%20$HOME?ssh=ssh%20-i%20key".parse().expect("good");
        let ssh = url.ssh.clone().expect("ssh");
        let shown = format!("{:?}", tunnel(&url, &ssh, &url.path, &url.options));
        let words = r#"["-i", "key", "-T", "-x", "-oBatchMode=yes", "-oClearAllForwardings=yes", "-oConnectTimeout=15", "-p", "2022", "-l", "joe", "--", "::1", "tombolo serve --stdio --squash none", "'/it'\\''s $HOME'=/"]"#;
        assert!(shown.contains(words), "{shown}");
    }

    #[test]
    fn ssh_failures_get_matching_remedies() {
        let failed =
            |code, said: &str| ended(&TunnelFault { program: "ssh".into(), code, last_line: said.into() });
        let denied = failed(Some(255), "joe@h: Permission denied (publickey).");
        assert_eq!(denied.server, Reachability::Permanent);
        assert!(denied.remedy.is_some_and(|remedy| remedy.contains("ssh -i KEY")));
        let unknown = failed(Some(255), "Host key verification failed.");
        assert!(unknown.remedy.is_some_and(|remedy| remedy.contains("manually once")));
        let refused = failed(Some(255), "ssh: connect to host h port 22: Connection refused");
        assert_eq!((refused.server, refused.remedy), (Reachability::Unreachable, None));
        let nowhere = failed(Some(255), "ssh: Could not resolve hostname h: Name or service not known");
        assert_eq!(nowhere.server, Reachability::Unresolved);
        let missing = failed(Some(127), "bash: line 1: tombolo: command not found");
        assert!(missing.remedy.is_some_and(|remedy| remedy.contains("tombolo=PROGRAM")));
        let theirs = failed(Some(1), "tombolo: cannot serve /x: No such file or directory");
        assert_eq!(
            (theirs.server, &*theirs.reason),
            (Reachability::Permanent, "cannot serve /x: No such file or directory")
        );
        assert_eq!(failed(Some(3), "").reason, "ssh ended with code 3");
    }
}
