//! Invalid handles (RFC 1813 §2.4: at most 64 bytes; empty ones are refused, too).

use tombolo_conformance::waist::World;
use tombolo_core::Result;
use tombolo_nfs_client_tests::server::{ReceivedCall, ScriptedReply};
use tombolo_wire_nfs3::{Procedure, WccData};
use tombolo_wire_xdr::Encoder;

use crate::hostile::operations::page;
use crate::hostile::stage::{assert_names, on_soft, told};

/// Invalid handle lengths: announced and actual.
const BAD: &[(u32, usize)] = &[(0, 0), (65, 65), (128, 128), (u32::MAX, 64), (0x8000_0000, 0)];

fn handle(xdr: &mut Encoder<'_>, announced: u32, bytes: usize) {
    xdr.u32(announced).fixed(&vec![7; bytes]);
}

/// Encodes results of LOOKUP, which begin with the handle.
fn found(announced: u32, bytes: usize) -> Vec<u8> {
    let mut results = Vec::new();
    let mut xdr = Encoder::new(&mut results);
    xdr.u32(0);
    handle(&mut xdr, announced, bytes);
    // No attributes of either.
    xdr.bool(false).bool(false);
    results
}

/// Encodes results of a creating procedure.
fn made(announced: u32, bytes: usize) -> Vec<u8> {
    let mut results = Vec::new();
    let mut xdr = Encoder::new(&mut results);
    xdr.u32(0).bool(true);
    handle(&mut xdr, announced, bytes);
    xdr.bool(false).value(&WccData::NONE);
    results
}

#[test]
fn bad_node_handle_fails_with_host_and_operation() {
    type Results = fn(u32, usize) -> Vec<u8>;
    type Make = fn(&World, &str) -> Result<()>;
    let cases: &[(Procedure, Results, Make)] = &[
        (Procedure::Lookup, found, |world, text| world.lookup(text).map(drop)),
        (Procedure::Mkdir, made, |world, text| world.mkdir(text).map(drop)),
        (Procedure::Symlink, made, |world, text| world.symlink(text, b"target").map(drop)),
    ];
    for &(procedure, results, make) in cases {
        on_soft(move |stage, world| {
            for &(announced, bytes) in BAD {
                stage.server.now(move |asked: &ReceivedCall<'_>| match asked.is(procedure) {
                    // Executed, with a reply of the script's.
                    true => ScriptedReply::All(vec![
                        ScriptedReply::Dropped,
                        ScriptedReply::Results(results(announced, bytes)),
                    ]),
                    false => ScriptedReply::Forward,
                });
                let result = make(world, &format!("handle-{announced}"));
                match result {
                    // Creating procedures may omit the handle; the client then looks it up.
                    Ok(()) if bytes == 0 && procedure != Procedure::Lookup => {}
                    result => assert_names(result, &format!("{procedure:?}")),
                }
            }
        });
    }
}

#[test]
fn bad_listed_handle_fails_or_is_ignored() {
    on_soft(|stage, world| {
        for &(announced, bytes) in BAD {
            stage.server.now(move |asked: &ReceivedCall<'_>| {
                if !asked.is(Procedure::Readdirplus) {
                    return ScriptedReply::Forward;
                }
                let mut results = Vec::new();
                let mut xdr = Encoder::new(&mut results);
                // Status, attributes of the directory, verifier; an entry; its attributes; its handle; the
                // end.
                xdr.u32(0).bool(false).u64(0);
                xdr.bool(true).u64(77).opaque(b"entry").u64(1);
                xdr.bool(false).bool(true);
                handle(&mut xdr, announced, bytes);
                xdr.bool(false).bool(true);
                ScriptedReply::Results(results)
            });
            if let Err(error) = page(world, true) {
                assert!(told(&error).contains("127.0.0.1"), "{}", told(&error));
            }
        }
    });
}
