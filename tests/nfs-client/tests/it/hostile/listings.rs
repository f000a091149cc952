//! Endless and circular directories, and pages too small for any entry.

use tombolo_conformance::waist::World;
use tombolo_core::Error;
use tombolo_core::fs::Cookie;
use tombolo_nfs_client_tests::server::{Page, ReceivedCall, ScriptedReply, listing};
use tombolo_test_support::budget;
use tombolo_wire_nfs3::{Call, Procedure, Status};
use tombolo_wire_xdr::Encoder;

use crate::hostile::stage::{on_soft, told};

/// More entries than any of these directories has or may appear to have.
const ENTRIES_MAX: usize = 20_000;

/// Lists the world's directory; returns the number of entries or the error.
fn list(world: &World, plus: bool) -> Result<usize, Error> {
    let file = world.open_dir(world.dir)?;
    let (mut count, mut cookie) = (0, Cookie::START);
    let listed = loop {
        match world.readdir(file, cookie, budget(4096, plus)) {
            Err(error) => break Err(error),
            Ok(page) => {
                count += page.len();
                assert!(count <= ENTRIES_MAX, "a listing without an end");
                cookie = page.iter().last().map_or(cookie, |entry| entry.cookie);
                if page.is_end() {
                    break Ok(count);
                }
                assert!(!page.is_empty(), "a page that says neither more nor the end");
            }
        }
    };
    world.release(file);
    listed
}

#[test]
fn listing_errors_name_their_procedure() {
    for (plus, procedure) in [(false, "Readdir: "), (true, "Readdirplus: ")] {
        on_soft(move |stage, world| {
            // A cookie that leads back, and an invalid name.
            for (name, cookie) in [("same", 0), ("a/b", 7)] {
                stage.server.now(listing(None, move |_| Page {
                    entries: vec![(name.to_owned(), cookie)],
                    eof: false,
                }));
                let told = told(&list(world, plus).expect_err("no listing"));
                assert!(told.contains(procedure), "{told}");
            }
        });
    }
}

/// Asserts that listing such a directory fails with an error that names the host.
#[track_caller]
fn refused(page: impl Fn(u64) -> Page + Clone + Send + 'static) {
    for plus in [false, true] {
        let page = page.clone();
        on_soft(move |stage, world| {
            stage.server.now(listing(None, page));
            let error = list(world, plus).expect_err("the directory never ends");
            let told = told(&error);
            assert!(told.contains("127.0.0.1") || matches!(error, Error::BadCookie), "{told}");
        });
    }
}

fn entry(cookie: u64) -> (String, u64) {
    (format!("entry-{cookie}"), cookie)
}

#[test]
fn an_honest_listing_of_many_pages_is_whole() {
    for plus in [false, true] {
        on_soft(move |stage, world| {
            stage.server.now(listing(None, |from| Page {
                entries: (from + 1..=from + 50).map(entry).collect(),
                eof: from >= 950,
            }));
            assert_eq!(list(world, plus).expect("a whole listing"), 1000);
        });
    }
}

#[test]
fn cookies_need_not_be_in_order() {
    on_soft(|stage, world| {
        // Hash order, as in some file systems: 7, 14, … modulo a prime, back to 0.
        let next = |cookie: u64| (cookie + 7) % 1009;
        stage.server.now(listing(None, move |from| {
            let cookies = std::iter::successors(Some(next(from)), |&cookie| Some(next(cookie)));
            let cookies: Vec<_> = cookies.take(40).take_while(|&cookie| cookie != 0).collect();
            Page { eof: cookies.len() < 40, entries: cookies.into_iter().map(entry).collect() }
        }));
        assert_eq!(list(world, true).expect("a whole listing"), 1008);
    });
}

#[test]
fn looping_pages_are_refused() {
    // A cookie twice in a page; pages that lead back to themselves, to their start, or nowhere.
    refused(|from| Page { entries: [1, 2, 2, 3].map(|step| entry(from + step)).to_vec(), eof: false });
    refused(|from| Page { entries: [from.max(1), from.max(1)].map(entry).to_vec(), eof: false });
    refused(|_| Page { entries: [1, 2, 3].map(entry).to_vec(), eof: false });
    refused(|_| Page { entries: vec![("entry".into(), 0)], eof: false });
    refused(|_| Page { entries: Vec::new(), eof: false });
    for period in [2_u64, 3, 64, 1000] {
        refused(move |from| Page { entries: vec![entry(from % period + 1)], eof: false });
    }
    // A circle with a path into it.
    refused(|from| Page { entries: vec![entry(if from < 300 { from + 1 } else { 101 })], eof: false });
}

#[test]
fn invalid_listed_names_are_not_returned() {
    for bad in ["", "a/b", "/etc/passwd", "nul\0", "../x"] {
        for plus in [false, true] {
            on_soft(move |stage, world| {
                stage.server.now(listing(None, move |_| Page {
                    entries: vec![entry(1), (bad.to_owned(), 2), entry(3)],
                    eof: true,
                }));
                let file = world.open_dir(world.dir).expect("open");
                // Refused or left out, but never returned.
                if let Ok(page) = world.readdir(file, Cookie::START, budget(4096, plus)) {
                    assert!(page.iter().all(|entry| entry.name != bad.as_bytes()), "{bad:?} was listed");
                }
            });
        }
    }
}

#[test]
fn overlong_listed_name_is_not_returned() {
    on_soft(|stage, world| {
        let long = "x".repeat(3000);
        stage.server.now(listing(None, move |_| Page { entries: vec![(long.clone(), 1)], eof: true }));
        let listed = list(world, false);
        assert!(listed.as_ref().is_err() || matches!(listed, Ok(0)), "{listed:?}");
    });
}

#[test]
fn directory_whose_entries_never_fit_is_an_error() {
    on_soft(|stage, world| {
        stage.server.now(|asked: &ReceivedCall<'_>| {
            let is_listing = asked.is(Procedure::Readdir) || asked.is(Procedure::Readdirplus);
            match is_listing {
                // TOOSMALL, and no attributes.
                true => ScriptedReply::Results([10_005_u32.to_be_bytes(), [0; 4]].concat()),
                false => ScriptedReply::Forward,
            }
        });
        list(world, true).expect_err("no entry fits");
    });
}

/// Simulates a directory whose cookies are indexes, valid for one version, as its verifier says. Each
/// continued page starts a new version, up to `versions_max`, with the order reversed and one more name.
fn changing(versions_max: u64) -> impl FnMut(&ReceivedCall<'_>) -> ScriptedReply + Send + 'static {
    let mut version = 1;
    move |asked| {
        let (cookie, verifier, plus) = match asked.call() {
            Some(Call::Readdir(args)) => (args.cookie.0, args.verifier, false),
            Some(Call::Readdirplus(args)) => (args.cookie.0, args.verifier, true),
            _ => return ScriptedReply::Forward,
        };
        if cookie != 0 && verifier.0 != u64::to_be_bytes(version) {
            return refused_cookie();
        }
        let mut results = Vec::new();
        let mut xdr = Encoder::new(&mut results);
        let mut names: Vec<_> = (0..300).map(|number| format!("stays-{number}")).collect();
        names.extend((1..version).map(|version| format!("comes-{version}")));
        if version % 2 == 0 {
            names.reverse();
        }
        xdr.u32(0).bool(false).u64(version);
        let at = usize::try_from(cookie).expect("a small number");
        for (index, name) in names.iter().enumerate().skip(at).take(40) {
            xdr.bool(true).u64(1000 + index as u64).opaque(name.as_bytes()).u64(index as u64 + 1);
            if plus {
                xdr.bool(false).bool(false);
            }
        }
        xdr.bool(false).bool(at + 40 >= names.len());
        if at > 0 && version < versions_max {
            version += 1;
        }
        ScriptedReply::Results(results)
    }
}

#[test]
fn a_listing_whose_cookie_is_refused_goes_on() {
    for (plus, versions_max, size_bytes) in
        [(false, 2, 4096), (true, 2, 500), (false, 5, 500), (true, 5, 1 << 16)]
    {
        on_soft(move |stage, world| {
            stage.server.now(changing(versions_max));
            let file = world.open_dir(world.dir).expect("open");
            let (mut names, mut cookie) = (Vec::new(), Cookie::START);
            loop {
                let page = world.readdir(file, cookie, budget(size_bytes, plus)).expect("a page");
                // A kernel may take a part of a page and request the remainder again.
                let taken = page.len().div_ceil(2);
                for entry in page.iter().take(taken) {
                    names.push(String::from_utf8_lossy(entry.name).into_owned());
                    cookie = entry.cookie;
                }
                if page.is_end() && taken == page.len() {
                    break;
                }
            }
            world.release(file);
            let stays = names.iter().filter(|name| name.starts_with("stays"));
            assert_eq!(stays.count(), 300, "{plus} {versions_max} {size_bytes}");
            names.sort();
            assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "{plus} {versions_max} {size_bytes}");
        });
    }
}

#[test]
fn a_server_that_refuses_each_cookie_is_given_up() {
    for plus in [false, true] {
        on_soft(move |stage, world| {
            // The same few names each time, without an end.
            stage.server.now(move |asked| match asked.call() {
                Some(Call::Readdir(args)) if args.cookie.0 != 0 => refused_cookie(),
                Some(Call::Readdirplus(args)) if args.cookie.0 != 0 => refused_cookie(),
                _ => listing(None, |_| Page { entries: (1..=20).map(entry).collect(), eof: false })(asked),
            });
            assert!(matches!(list(world, plus), Err(Error::BadCookie)), "{plus}");
        });
    }
}

fn refused_cookie() -> ScriptedReply {
    let mut results = Vec::new();
    Encoder::new(&mut results).u32(Status::BadCookie as u32).bool(false);
    ScriptedReply::Results(results)
}
