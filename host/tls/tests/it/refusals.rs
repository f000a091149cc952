//! Refusals by each side, and the reasons given.

use std::fs;
use std::time::{Duration, SystemTime};

use tombolo_host_tls::{
    Authority, AuthorityError, ClientTls, HostName, Presents, Request, ServerTls, SetupError, TlsError,
};

use crate::world::{DAY, Ends, World};

fn refused(outcome: &Result<(), TlsError>) -> String {
    match outcome {
        Err(error @ TlsError::Refused(_)) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn both_sides_learn_who_the_other_is() {
    let world = World::new();
    let ends = Ends::new(&world.server("server"), &world.client("alice", "localhost", Presents::Certificate));
    assert_eq!(ends.outcome(), (Ok(()), Ok(())));
    assert_eq!(ends.server.0.peer().unwrap().subject, "alice");
    assert_eq!(ends.client.0.peer().unwrap().subject, "server");
    let serial = world.authority().issued().unwrap().pop().unwrap().serial;
    assert_eq!(ends.server.0.peer().unwrap().serial, serial);
    assert_eq!(world.outcome("server", "alice", "127.0.0.1"), (Ok(()), Ok(())));
}

#[test]
fn foreign_certificate_is_refused_by_either_side() {
    let (world, other) = (World::new(), World::new());
    let ends = Ends::new(&world.server("server"), &other.client("alice", "localhost", Presents::Certificate));
    assert_eq!(ends.outcome().0, Err(TlsError::UnknownIssuer));
    // A client that trusts both CAs, of which one trusts it.
    let both =
        [world.at("ca/ca.pem"), other.at("ca/ca.pem")].map(|path| fs::read_to_string(path).unwrap()).concat();
    fs::write(other.at("alice/ca.pem"), both).unwrap();
    fs::remove_file(other.at("alice/crl.pem")).unwrap();
    let ends = Ends::new(&world.server("server"), &other.client("alice", "localhost", Presents::Certificate));
    let (client, server) = ends.outcome();
    assert_eq!(server, Err(TlsError::UnknownIssuer));
    assert!(refused(&client).contains("the peer does not trust its CA"), "{client:?}");
}

#[test]
fn an_expired_certificate_is_refused_on_either_side() {
    let world = World::new();
    let past = SystemTime::now() - Duration::from_secs(60);
    world.issue("late", &["localhost"], past);
    let (client, server) = world.outcome("server", "late", "localhost");
    assert_eq!(server, Err(TlsError::Expired));
    assert!(refused(&client).contains("it has expired; issue a new one"), "{client:?}");
    let (client, server) = world.outcome("late", "alice", "localhost");
    assert_eq!(client, Err(TlsError::Expired));
    refused(&server);
}

#[test]
fn revoked_certificate_is_refused_in_next_session() {
    let world = World::new();
    let server = world.server("server");
    let outcome = || Ends::new(&server, &world.client("alice", "localhost", Presents::Certificate)).outcome();
    assert_eq!(outcome(), (Ok(()), Ok(())));
    assert_eq!(world.authority().revoke("alice").unwrap(), 1);
    fs::copy(world.at("ca/crl.pem"), world.at("server/crl.pem")).unwrap();
    let (client, refusal) = outcome();
    assert_eq!(refusal, Err(TlsError::Revoked));
    assert!(refused(&client).contains("revoked"), "{client:?}");
    // While the list is unusable, the previous one applies.
    fs::write(world.at("server/crl.pem"), "half a li").unwrap();
    assert_eq!(outcome().1, Err(TlsError::Revoked));
    assert!(matches!(ServerTls::open(&world.at("server")), Err(SetupError::Pem { .. })));
    world.issue("alice", &[], SystemTime::now() + DAY);
    fs::copy(world.at("ca/crl.pem"), world.at("server/crl.pem")).unwrap();
    assert_eq!(outcome(), (Ok(()), Ok(())), "a new certificate of the same name");
    assert!(matches!(world.authority().revoke("bob"), Err(AuthorityError::NotIssued(_))));
    // A server's certificate too, if the client has the list.
    world.authority().revoke("server").unwrap();
    fs::copy(world.at("ca/crl.pem"), world.at("alice/crl.pem")).unwrap();
    assert_eq!(outcome().0, Err(TlsError::Revoked));
}

#[test]
fn revoking_ca_file_requires_revocation_list() {
    let (world, other) = (World::new(), World::of_authority("other-ca"));
    let both = |file: &str| [&world, &other].map(|of| fs::read(of.at(file)).unwrap()).concat();
    let (ca, list) = (world.at("server/ca.pem"), world.at("server/crl.pem"));
    // Files in use have this line, so it never changes.
    let marked = fs::read_to_string(&ca).unwrap();
    assert!(marked.starts_with("# This CA revokes: crl.pem has to lie beside.\n"), "{marked}");
    fs::copy(world.at("ca/ca.pem"), &ca).unwrap();
    fs::remove_file(&list).unwrap();
    let server = world.server("server");
    fs::write(other.at("alice/ca.pem"), both("ca/ca.pem")).unwrap();
    fs::remove_file(other.at("alice/crl.pem")).unwrap();
    let client = other.client("alice", "localhost", Presents::Certificate);
    let outcome = || Ends::new(&server, &client).outcome().1;
    // The marker was issued with the other CA's certificates.
    fs::write(&ca, [fs::read(other.at("server/ca.pem")).unwrap(), both("ca/ca.pem")].concat()).unwrap();
    assert_eq!(outcome(), Err(TlsError::UnknownIssuer), "the files of before count");
    fs::write(&list, both("ca/crl.pem")).unwrap();
    assert_eq!(outcome(), Ok(()));
}

#[test]
fn a_lost_list_revokes_what_it_revoked_before() {
    let world = World::new();
    world.authority().revoke("alice").unwrap();
    let (list, good) = (world.at("server/crl.pem"), fs::read(world.at("ca/crl.pem")).unwrap());
    fs::write(&list, &good).unwrap();
    let server = world.server("server");
    let outcome =
        || Ends::new(&server, &world.client("alice", "localhost", Presents::Certificate)).outcome().1;
    let losses: [(&str, &dyn Fn()); 5] = [
        ("removed", &|| fs::remove_file(&list).unwrap()),
        ("emptied", &|| fs::write(&list, "").unwrap()),
        ("torn", &|| fs::write(&list, &good[..good.len() / 2]).unwrap()),
        ("of another kind", &|| fs::write(&list, fs::read(world.at("ca/ca.pem")).unwrap()).unwrap()),
        ("unreadable", &|| {
            fs::remove_file(&list).unwrap();
            fs::create_dir(&list).unwrap();
        }),
    ];
    for (how, lose) in losses {
        assert_eq!(outcome(), Err(TlsError::Revoked));
        lose();
        for _ in 0..2 {
            assert_eq!(outcome(), Err(TlsError::Revoked), "{how}");
        }
        let again = ServerTls::open(&world.at("server")).expect_err(how).to_string();
        assert!(again.contains("crl.pem"), "{how}: {again}");
        let client =
            ClientTls::open(&world.at("server"), "localhost".parse().unwrap(), Presents::Certificate);
        assert!(client.is_err(), "{how}");
        if how != "unreadable" {
            fs::write(&list, &good).unwrap();
        }
    }
    // A CA that never had a list needs none.
    fs::remove_dir(&list).unwrap();
    fs::copy(world.at("ca/ca.pem"), world.at("server/ca.pem")).unwrap();
    assert!(ServerTls::open(&world.at("server")).is_ok());
}

#[test]
fn server_certificate_must_match_name_and_purpose() {
    let world = World::new();
    assert_eq!(world.outcome("server", "alice", "other.example").0, Err(TlsError::WrongName));
    assert_eq!(world.outcome("server", "alice", "127.0.0.2").0, Err(TlsError::WrongName));
    assert_eq!(world.outcome("alice", "server", "localhost").0, Err(TlsError::WrongPurpose));
    assert!("a b".parse::<HostName>().is_err());
}

#[test]
fn a_client_without_a_certificate_is_refused() {
    let world = World::new();
    let ends = Ends::new(&world.server("server"), &world.client("alice", "localhost", Presents::Nothing));
    let (client, server) = ends.outcome();
    assert_eq!(server, Err(TlsError::NoCertificate));
    assert!(refused(&client).contains("xprtsec=mtls"), "{client:?}");
}

#[test]
fn an_authority_is_made_once_and_names_lead_nowhere() {
    let world = World::new();
    assert!(matches!(Authority::create(&world.at("ca"), "again"), Err(AuthorityError::Exists(_))));
    assert!(matches!(Authority::open(&world.at("server")), Err(AuthorityError::None(_))));
    fs::write(world.at("server/ca-key.pem"), "not a key").unwrap();
    assert!(matches!(Authority::open(&world.at("server")), Err(AuthorityError::Malformed(_))));
    for name in ["", "../up", "a/b", ".hidden", "a b", "ä", &"x".repeat(65)] {
        let request = Request { name: name.into(), hosts: Vec::new(), until: SystemTime::now() + DAY };
        let outcome = world.authority().issue(&request, &world.at("out"));
        assert!(matches!(outcome, Err(AuthorityError::Name(_))), "{name:?}");
    }
    assert!(!world.at("out").exists());
    use std::os::unix::fs::PermissionsExt;
    for key in ["ca/ca-key.pem", "alice/key.pem"] {
        assert_eq!(fs::metadata(world.at(key)).unwrap().permissions().mode() & 0o777, 0o600, "{key}");
    }
}
