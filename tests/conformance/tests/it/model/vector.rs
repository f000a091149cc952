//! A file as a vector of bytes, the simplest oracle.

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use tombolo_core::fs::{
    AllocateMode, Client, Create, Export, File, Name, NodeId, OpenFlags, PermissionCheck, SetAttr, Write,
};
use tombolo_core::{Ctx, SessionId};
use tombolo_mem::{Buffer, Source};

#[derive(Clone, Debug)]
pub enum Edit {
    Write(usize, usize),
    Resize(usize),
    Punch(usize, usize),
    Read(usize, usize),
}

pub fn sequences() -> impl Strategy<Value = Vec<Edit>> {
    let at = || prop_oneof![0_usize..10, 4090_usize..4100, 0_usize..20_000];
    let len = || 0_usize..9000;
    let edit = prop_oneof![
        (at(), len()).prop_map(|(at, len)| Edit::Write(at, len)),
        at().prop_map(Edit::Resize),
        (at(), 1_usize..9000).prop_map(|(at, len)| Edit::Punch(at, len)),
        (at(), len()).prop_map(|(at, len)| Edit::Read(at, len)),
    ];
    prop::collection::vec(edit, 1..40)
}

pub fn check(export: &dyn Export, edits: &[Edit]) -> Result<(), TestCaseError> {
    let client = Client { session: SessionId(1), label: "vector".into(), checks: PermissionCheck::BackEnd };
    let fs = export.attach(&client).expect("a session");
    let (cx, name) = (Ctx::root(client.session), Name::new(b"file").expect("a good name"));
    let flags = OpenFlags::READ | OpenFlags::WRITE | OpenFlags::TRUNCATE;
    let created =
        fs.create(&cx, NodeId::ROOT, name, &Create { flags, ..Create::default() }).wait().expect("create");
    let file = File { node: created.entry.node, open: created.open };
    let mut vector: Vec<u8> = Vec::new();
    for (step, edit) in edits.iter().enumerate() {
        match *edit {
            Edit::Write(at, len) => {
                let bytes = vec![step as u8 + 1; len];
                let how = Write { offset: at as u64, ..Write::default() };
                let written = fs.write(&cx, file, &how, Source::from(bytes.clone())).wait().expect("write");
                prop_assert_eq!(written.count, len);
                if len > 0 {
                    vector.resize(vector.len().max(at + len), 0);
                    vector[at..at + len].copy_from_slice(&bytes);
                }
            }
            Edit::Resize(size) => {
                let set = SetAttr { size: Some(size as u64), ..SetAttr::default() };
                fs.setattr(&cx, file.node, Some(file), &set).wait().expect("resize");
                vector.resize(size, 0);
            }
            Edit::Punch(at, len) => {
                let mode = AllocateMode::PUNCH_HOLE | AllocateMode::KEEP_SIZE;
                let ranges = fs.ranges().expect("ranges");
                ranges.allocate(&cx, file, at as u64, len as u64, mode).wait().expect("punch");
                let end = vector.len().min(at + len);
                vector[at.min(end)..end].fill(0);
            }
            Edit::Read(at, len) => {
                let mut buffer = Buffer::new(len);
                let done = fs.read(&cx, file, at as u64, buffer.sink(0..len)).wait().expect("read");
                let expected = vector.get(at..).unwrap_or_default();
                let expected = &expected[..expected.len().min(len)];
                prop_assert_eq!(
                    &buffer.as_slice().expect("free again")[..done.count],
                    expected,
                    "step {}",
                    step
                );
            }
        }
        let size = fs.getattr(&cx, file.node, Some(file)).wait().expect("attributes").size;
        prop_assert_eq!(size, vector.len() as u64, "step {}", step);
    }
    Ok(())
}
