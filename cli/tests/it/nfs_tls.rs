//! NFS over TLS: client and server, each with another implementation as peer, and invalid certificates.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Command;
use std::time::{Duration, SystemTime};

use tombolo_host_tls::{Authority, Request};

use crate::common::{Ran, Scratch, Server};

/// Creates an authority, a certificate for a server at 127.0.0.1, and one for alice.
fn scratch() -> Scratch {
    let scratch = Scratch::new();
    scratch.run("keys ca --ca ca").succeeded();
    issue(&scratch, "server", "--host 127.0.0.1");
    issue(&scratch, "alice", "");
    scratch
}

fn issue(scratch: &Scratch, name: &str, more: &str) {
    scratch.run(format!("keys issue --ca ca --out {name} {name} {more}")).succeeded();
}

fn serve(scratch: &Scratch) -> Server {
    serve_with(scratch, "")
}

fn serve_with(scratch: &Scratch, more: &str) -> Server {
    let words = "serve tree --nfs-tls 127.0.0.1:0 --tls-dir server --squash none";
    scratch.serve(format!("{words} --state tls-state --control tls.sock {more}"))
}

fn url(server: &Server, path: &str, client: &str) -> String {
    format!("nfs://{}/tree{path}?xprtsec=mtls&tlsdir={client}", server.nfs_tls_address())
}

fn cat(scratch: &Scratch, server: &Server, client: &str) -> Ran {
    scratch.run(format!("cat {}", url(server, "/file", client)))
}

#[test]
fn files_go_both_ways_over_tls() {
    let scratch = scratch();
    let server = serve(&scratch);
    let much = url(&server, "/much", "alice");
    scratch.is_copied(&much, "much", &much);
    assert_eq!(cat(&scratch, &server, "alice").out, "content\n");
    server.stop();
}

#[test]
fn nothing_goes_without_tls_where_either_side_wants_it() {
    let scratch = scratch();
    let server = serve(&scratch);
    let plain = format!("nfs://{}/tree/file", server.nfs_tls_address());
    scratch.run(format!("cat {plain}")).failed(1, &["TooWeak"]);
    let anonymous = format!("{plain}?xprtsec=tls&tlsdir=alice");
    scratch.run(format!("cat {anonymous}")).failed(1, &["none was presented", "xprtsec=mtls"]);
    let (plain_server, plain_url) = scratch.serve_nfs_with("--nfs-no-udp");
    let secure = format!("{plain_url}/file?xprtsec=mtls&tlsdir=alice");
    scratch.run(format!("cat {secure}")).failed(1, &["the server does not offer TLS at this port"]);
    scratch.run(format!("cat {secure}&udp")).failed(1, &["TLS is not available over UDP"]);
    assert_eq!(scratch.run(format!("cat {plain_url}/file?xprtsec=none")).out, "content\n");
    drop((server, plain_server));
}

#[test]
fn allow_plain_admits_clients_without_tls() {
    let scratch = scratch();
    let server = serve_with(&scratch, "--allow-plain 127.0.0.0/8");
    let plain = format!("nfs://{}/tree/file", server.nfs_tls_address());
    assert_eq!(scratch.run(format!("cat {plain}")).out, "content\n");
    assert_eq!(cat(&scratch, &server, "alice").out, "content\n");
    server.stop();
    let server = serve_with(&scratch, "--allow-plain 10.0.0.0/8");
    let plain = format!("nfs://{}/tree/file", server.nfs_tls_address());
    scratch.run(format!("cat {plain}")).failed(1, &["TooWeak"]);
    assert_eq!(cat(&scratch, &server, "alice").out, "content\n");
    server.stop();
    scratch.run("serve tree --nfs 0 --allow-plain ::/0").failed(2, &["--allow-plain requires --nfs-tls"]);
}

#[test]
fn certificates_that_are_no_good_say_what_to_do() {
    let scratch = scratch();
    let server = serve(&scratch);
    scratch.run("keys ca --ca other-ca").succeeded();
    scratch.run("keys issue mallory --ca other-ca --out mallory").succeeded();
    cat(&scratch, &server, "mallory").failed(1, &["of an untrusted CA", "ca.pem"]);
    // A client that trusts the server is not thereby trusted.
    fs::copy(scratch.path("ca/ca.pem"), scratch.path("mallory/ca.pem")).expect("copy");
    fs::copy(scratch.path("ca/crl.pem"), scratch.path("mallory/crl.pem")).expect("copy");
    cat(&scratch, &server, "mallory").failed(1, &["the peer does not trust its CA"]);
    let past = SystemTime::now() - Duration::from_secs(60);
    let late = Request { name: "late".into(), hosts: Vec::new(), until: past };
    let authority = Authority::open(&scratch.path("ca")).expect("an authority");
    authority.issue(&late, &scratch.path("late")).expect("issued");
    drop(authority);
    cat(&scratch, &server, "late").failed(1, &["it has expired", "tombolo keys issue"]);
    let elsewhere = url(&server, "/file", "alice").replace("127.0.0.1", "localhost");
    scratch.run(format!("cat {elsewhere}")).failed(1, &["not for this host name", "--host"]);
    cat(&scratch, &server, "none").failed(1, &["none/key.pem", "tlsdir="]);
    assert_eq!(cat(&scratch, &server, "alice").out, "content\n");
    scratch.run("keys revoke alice --ca ca").succeeded();
    fs::copy(scratch.path("ca/crl.pem"), scratch.path("server/crl.pem")).expect("copy");
    cat(&scratch, &server, "alice").failed(1, &["it is revoked", "tombolo keys issue"]);
    let listed = scratch.run("keys issued --ca ca").out;
    for (name, state) in [("server", "valid for 36"), ("alice", "revoked"), ("late", "expired")] {
        let line = listed.lines().find(|line| line.contains(&format!("  {name}  ")));
        assert!(line.is_some_and(|line| line.contains(state)), "{listed}");
    }
    scratch.run("keys revoke alice --ca ca").failed(1, &["no valid certificate of alice"]);
    scratch.run("keys ca --ca ca").failed(1, &["authority already exists"]);
    scratch.run("serve tree --nfs-tls 0 --tls-dir none").failed(1, &["none/ca.pem", "--tls-dir"]);
    scratch.run("serve tree --nfs 0 --tls-dir server").failed(2, &["requires --nfs-tls"]);
}

#[test]
fn certificate_determines_users_and_ids_are_mapped() {
    let scratch = scratch();
    ["gateway", "stranger"].iter().for_each(|name| issue(&scratch, name, ""));
    fs::set_permissions(scratch.path("tree"), fs::Permissions::from_mode(0o777)).expect("chmod");
    let rules = "[[client]]\nsubject = \"ali*\"\nact-as = \"1001:101\"\n[[client]]\nsubject = \"gateway\"\nany = true\n";
    fs::write(scratch.path("users.toml"), rules).expect("write");
    let maps = "--map-users 1000:5000:10 --map-groups 101:701";
    let server = serve_with(&scratch, &format!("--tls-users users.toml {maps}"));
    // The copying user is root on both sides.
    for (client, owner) in [("alice", (5001, 701)), ("gateway", (0, 0)), ("stranger", (65_534, 65_534))] {
        let to = url(&server, &format!("/{client}"), client);
        scratch.run(format!("cp plain {to}")).succeeded();
        let made = fs::metadata(scratch.path("tree").join(client)).expect("it is there");
        assert_eq!((made.uid(), made.gid()), owner, "{client}");
    }
    let seen = scratch.run(format!("stat {}", url(&server, "/alice", "gateway"))).out;
    assert!(seen.contains("1001") && !seen.contains("5001"), "{seen}");
    let words = "serve tree --tls-users users.toml --nfs";
    scratch.run(format!("{words} 0")).failed(2, &["--tls-users requires --nfs-tls"]);
    let overlapping = "serve tree --nfs 0 --map-users 1:1 --map-users 2:1";
    scratch.run(overlapping).failed(2, &["1:1:1 and 2:1:1 overlap"]);
    server.stop();
}

/// Runs Python's ssl, which is OpenSSL, as the peer.
fn stranger(scratch: &Scratch, words: &[&str]) -> Command {
    let mut command = scratch.program("python3", &["-c", STRANGER]);
    command.args(words);
    command
}

const STRANGER: &str = include_str!("nfs_tls_stranger.py");

fn has_python() -> bool {
    if Command::new("python3").args(["-c", "import ssl"]).status().is_ok_and(|status| status.success()) {
        return true;
    }
    tombolo_skip::skip!("python3 with ssl is missing");
}

#[test]
fn openssl_talks_to_our_server() {
    if !has_python() {
        return;
    }
    let scratch = scratch();
    let server = serve(&scratch);
    let address = server.nfs_tls_address().to_owned();
    for (case, said) in [
        ("calls", "TLSv1.3 sunrpc, answered"),
        ("plain", "denied 5, closed"),
        ("early", "closed"),
        ("noise", "closed"),
        ("old", "refused"),
        ("unnamed", "refused"),
    ] {
        let ran = Ran::new(stranger(&scratch, &[case, &address, "alice"]));
        assert_eq!(ran.out.trim(), said, "{case}: {ran:?}");
    }
    assert_eq!(cat(&scratch, &server, "alice").out, "content\n", "the server is well");
    server.stop();
}

#[test]
fn our_client_talks_to_openssl() {
    if !has_python() {
        return;
    }
    let scratch = scratch();
    for (case, said) in [
        ("serve", "ProgUnavail"),
        ("serve-plain", "the server does not offer TLS"),
        ("serve-long", "the server does not offer TLS"),
        ("serve-noise", "does not speak TLS 1.3"),
        ("serve-unnamed", "no ALPN sunrpc"),
    ] {
        let stranger =
            scratch.started(stranger(&scratch, &[case, "127.0.0.1:0", "server"]), "ready nfs-tls ");
        let ran = cat(&scratch, &stranger, "alice");
        ran.failed(1, &[said]);
    }
}
