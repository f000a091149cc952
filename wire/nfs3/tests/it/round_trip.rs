//! What is encoded decodes to the same; what is cut off is refused; what is hostile is survived.

use crate::common::*;
use proptest::prelude::*;
use tombolo_wire_nfs3::mount;
use tombolo_wire_nfs3::results::*;
use tombolo_wire_nfs3::{Call, Procedure, Reply};
use tombolo_wire_rpc::AuthFlavor;
use tombolo_wire_xdr::{Decode, Decoder, Encode, Error, padded};

/// Encodes, decodes again, and tries the same bytes cut off and with a hostile word at every place.
fn survives<T: Encode + Decode<'static> + PartialEq + std::fmt::Debug>(
    value: &T,
) -> Result<(), TestCaseError> {
    let bytes = &*encoded(value).leak();
    prop_assert_eq!(bytes.len() % 4, 0);
    let mut xdr = Decoder::new(bytes);
    let again = T::decode(&mut xdr);
    let encoded_again = again.as_ref().map(encoded);
    prop_assert_eq!(encoded_again.as_deref(), Ok(bytes), "{:?} and {:?}", value, again);
    prop_assert!(xdr.finish().is_ok());
    for len in 0..bytes.len() {
        let cut = T::decode(&mut Decoder::new(&bytes[..len]));
        prop_assert!(matches!(cut, Err(Error::Short { .. })), "{} of {} bytes: {:?}", len, bytes.len(), cut);
    }
    for hostile in hostile(bytes) {
        let _ = T::decode(&mut Decoder::new(hostile.leak()));
    }
    Ok(())
}

/// The same bytes with one word, each in turn, set to what an attacker would.
fn hostile(bytes: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let words = (0..bytes.len() / 4).step_by(if bytes.len() > 400 { 7 } else { 1 });
    words.flat_map(move |word| {
        [u32::MAX, 1 << 31, 2, 0].map(|value| {
            let mut hostile = bytes.to_vec();
            hostile[word * 4..][..4].copy_from_slice(&value.to_be_bytes());
            hostile
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn calls(call in call()) {
        let bytes = encoded(&call);
        let data = match call {
            Call::Write(args) => padded(args.data.len_bytes() as usize),
            _ => 0,
        };
        let whole = bytes.len() + data;
        let mut xdr = Decoder::new(&bytes);
        let again = Call::decode(call.procedure(), &mut xdr, whole).unwrap();
        prop_assert!(xdr.finish().is_ok());
        prop_assert_eq!(encoded(&again), &bytes[..]);
        match (call, again) {
            (Call::Write(call), Call::Write(again)) => {
                prop_assert_eq!((call.file, call.count, call.stable), (again.file, again.count, again.stable));
                let range = again.data.range(whole).unwrap();
                prop_assert_eq!(range, bytes.len()..bytes.len() + call.data.len_bytes() as usize);
                if data > 0 {
                    prop_assert!(Call::decode(Procedure::Write, &mut Decoder::new(&bytes), whole - 1).is_err());
                }
            }
            _ => prop_assert_eq!(call, again),
        }
        for len in 0..bytes.len() {
            let cut = Call::decode(call.procedure(), &mut Decoder::new(&bytes[..len]), whole);
            prop_assert!(matches!(cut, Err(Error::Short { .. })), "{} bytes: {:?}", len, cut);
        }
        for hostile in hostile(&bytes) {
            if let Ok(Call::Write(args)) = Call::decode(call.procedure(), &mut Decoder::new(&hostile), whole) {
                prop_assert!(args.data.len_bytes() as usize <= whole);
            }
        }
    }

    #[test]
    fn replies_about_nodes(
        getattr in reply(fattr(), Just(())),
        setattr in reply(wcc(), wcc()),
        lookup in reply(lookup_ok(), post_op_attr()),
        access in reply(access_ok(), post_op_attr()),
        readlink in reply(readlink_ok(), post_op_attr()),
        fsstat in reply(fsstat_ok(), post_op_attr()),
        fsinfo in reply(fsinfo_ok(), post_op_attr()),
        pathconf in reply(pathconf_ok(), post_op_attr()),
    ) {
        survives::<GetattrReply>(&getattr)?;
        survives::<SetattrReply>(&setattr)?;
        survives::<LookupReply<'_>>(&lookup)?;
        survives::<AccessReply>(&access)?;
        survives::<ReadlinkReply<'_>>(&readlink)?;
        survives::<FsstatReply>(&fsstat)?;
        survives::<FsinfoReply>(&fsinfo)?;
        survives::<PathconfReply>(&pathconf)?;
    }

    #[test]
    fn replies_about_changes_and_data(
        read in reply(read_ok(), post_op_attr()),
        write in reply(write_ok(), wcc()),
        create in reply(create_ok(), wcc()),
        remove in reply(wcc(), wcc()),
        rename in reply(rename_wcc(), rename_wcc()),
        link in reply(link_wcc(), link_wcc()),
        commit in reply(commit_ok(), wcc()),
    ) {
        survives::<ReadReply>(&read)?;
        survives::<WriteReply>(&write)?;
        survives::<CreateReply<'_>>(&create)?;
        survives::<RemoveReply>(&remove)?;
        survives::<RenameReply>(&rename)?;
        survives::<LinkReply>(&link)?;
        survives::<CommitReply>(&commit)?;
    }

    #[test]
    fn listings(
        readdir in reply(readdir_ok(), post_op_attr()),
        readdirplus in reply(readdirplus_ok(), post_op_attr()),
    ) {
        survives::<ReaddirReply<'_>>(&readdir)?;
        survives::<ReaddirplusReply<'_>>(&readdirplus)?;
    }

    #[test]
    fn mounts(
        handle in handle(),
        flavors in proptest::collection::vec(any::<u32>().prop_map(AuthFlavor), 0..=mount::FLAVORS_MAX),
        status in proptest::sample::select(mount::Status::ALL),
        names in proptest::collection::vec((bytes(255), bytes(1024)), 0..4),
    ) {
        let ok = mount::MntOk { handle, flavors: mount::Flavors::new(&flavors).unwrap() };
        survives::<mount::MntReply<'_>>(&Reply::Ok(ok))?;
        survives::<mount::MntReply<'_>>(&Reply::Failed(status, ()))?;
        let name = |bytes| mount::MountName::new(bytes).unwrap();
        let path = |bytes| mount::DirPath::new(bytes).unwrap();
        let mounts: Vec<_> =
            names.iter().map(|&(client, at)| mount::MountEntry { client: name(client), path: path(at) }).collect();
        survives::<mount::DumpReply<'_>>(&list(&mounts))?;
        let groups: Vec<_> = names.iter().map(|&(group, _)| name(group)).collect();
        let exports: Vec<_> =
            names.iter().map(|&(_, at)| mount::ExportEntry { path: path(at), groups: list(&groups) }).collect();
        survives::<mount::ExportReply<'_>>(&list(&exports))?;
        for &(_, at) in &names {
            for call in [mount::Call::Mnt(path(at)), mount::Call::Umnt(path(at))] {
                let bytes = encoded(&call);
                prop_assert_eq!(mount::Call::decode(call.procedure(), &mut Decoder::new(&bytes)), Ok(call));
            }
        }
    }

    #[test]
    fn arbitrary_bytes_are_refused_or_mean_something(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        for &procedure in Procedure::ALL {
            if let Ok(call) = Call::decode(procedure, &mut Decoder::new(&bytes), bytes.len()) {
                prop_assert_eq!(call.procedure(), procedure);
            }
        }
    }
}
