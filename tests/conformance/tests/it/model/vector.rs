//! A file as a vector of bytes, the simplest oracle.

use fastrand::Rng;
use tombolo_core::fs::{AllocateMode, Export, SetAttr};
use tombolo_test_support::Session;

#[derive(Clone, Debug)]
pub enum Edit {
    Write(usize, usize),
    Resize(usize),
    Punch(usize, usize),
    Read(usize, usize),
}

pub fn sample(rng: &mut Rng) -> Vec<Edit> {
    let edit = |rng: &mut Rng| {
        let at = match rng.u8(..3) {
            0 => rng.usize(..10),
            1 => rng.usize(4090..4100),
            _ => rng.usize(..20_000),
        };
        match rng.u8(..4) {
            0 => Edit::Write(at, rng.usize(..9000)),
            1 => Edit::Resize(at),
            2 => Edit::Punch(at, rng.usize(1..9000)),
            _ => Edit::Read(at, rng.usize(..9000)),
        }
    };
    (0..rng.usize(1..40)).map(|_| edit(rng)).collect()
}

pub fn check(export: &dyn Export, edits: &[Edit]) -> Result<(), String> {
    let session = Session::attach(export);
    session.put("file", b"");
    let file = session.writer("file");
    let mut vector: Vec<u8> = Vec::new();
    for (step, edit) in edits.iter().enumerate() {
        match *edit {
            Edit::Write(at, len) => {
                let bytes = vec![step as u8 + 1; len];
                assert_eq!(session.write(file, at as u64, &bytes).expect("write"), len);
                if len > 0 {
                    vector.resize(vector.len().max(at + len), 0);
                    vector[at..at + len].copy_from_slice(&bytes);
                }
            }
            Edit::Resize(size) => {
                let set = SetAttr { size: Some(size as u64), ..SetAttr::default() };
                session.fs.setattr(&session.cx, file.node, Some(file), &set).wait().expect("resize");
                vector.resize(size, 0);
            }
            Edit::Punch(at, len) => {
                let mode = AllocateMode::PUNCH_HOLE | AllocateMode::KEEP_SIZE;
                let punched = session.ranges().allocate(&session.cx, file, at as u64, len as u64, mode);
                punched.wait().expect("punch");
                let end = vector.len().min(at + len);
                vector[at.min(end)..end].fill(0);
            }
            Edit::Read(at, len) => {
                let rest = vector.get(at..).unwrap_or_default();
                let read = session.read(file, at as u64, len).expect("read");
                assert_eq!(read, rest[..rest.len().min(len)], "step {step}");
            }
        }
        assert_eq!(session.open_attr(file).size, vector.len() as u64, "step {step}");
    }
    session.release(file);
    Ok(())
}
