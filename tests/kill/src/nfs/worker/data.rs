//! Operations on contents.

use tombolo_wire_nfs3::args::{CommitArgs, ReadArgs, SetattrArgs, StableHow, WriteArgs};
use tombolo_wire_nfs3::results::{CommitReply, ReadReply, SetattrReply, WriteReply};
use tombolo_wire_nfs3::{Call, Data, Reply, Sattr3, WriteVerifier};

use super::model::Pending;
use super::{Entry, FileId, Worker};
use crate::failure::{Result, refused, wrong};

const OFFSET_LIMIT: usize = 64 << 10;
const WRITE_LIMIT: usize = 32 << 10;
const READ_BYTES: u32 = 64 << 10;

impl Worker {
    /// Performs a random operation on a file.
    pub(super) fn use_file(&mut self, dir: usize, name: String, file: FileId) -> Result<()> {
        match self.random.usize(..16) {
            0..=3 => self.write(file, StableHow::Unstable),
            4 | 5 => self.write(file, StableHow::FileSync),
            6 => self.write(file, StableHow::DataSync),
            7 | 8 => self.commit(file),
            9 => self.truncate(file),
            10 | 11 => self.read(file),
            12 => self.is_there(dir, &name, &Entry::File(file)),
            13 => self.move_over(dir, name, file),
            _ => self.remove(dir, &name),
        }
    }

    fn write(&mut self, file: FileId, stable: StableHow) -> Result<()> {
        if stable != StableHow::Unstable {
            self.commit(file)?;
        }
        let offset = self.random.usize(..OFFSET_LIMIT);
        let len = 1 + self.random.usize(..WRITE_LIMIT);
        let mut bytes = vec![0; len];
        self.random.fill(&mut bytes);
        match self.send_write(file, offset, &bytes, stable)? {
            Some(verifier) => self.file_mut(file)?.write_unstable(Pending { offset, bytes, verifier }),
            None => self.file_mut(file)?.write_stable(offset, &bytes),
        }
        Ok(())
    }

    /// Sends a write. Returns the verifier if the server may still lose the bytes.
    fn send_write(
        &mut self,
        file: FileId,
        offset: usize,
        bytes: &[u8],
        stable: StableHow,
    ) -> Result<Option<WriteVerifier>> {
        let handle = self.file(file)?.handle;
        let count = bytes.len() as u32;
        let (offset, data) = (offset as u64, Data::to_send(count));
        let call = Call::Write(WriteArgs { file: handle.as_handle(), offset, count, stable, data });
        let answer = self.call(&call, bytes)?;
        match answer.results::<WriteReply>()? {
            Reply::Ok(ok) if ok.count != count => wrong(format!("WRITE of {count} bytes wrote {}", ok.count)),
            Reply::Ok(ok) if ok.committed < stable => {
                wrong(format!("WRITE requested {stable:?} and got {:?}", ok.committed))
            }
            // With an unstable write pending, an answer that it is stable does not help: it is committed with
            // the others.
            Reply::Ok(ok) if stable == StableHow::Unstable => Ok(Some(ok.verifier)),
            Reply::Ok(_) => Ok(None),
            Reply::Failed(status, _) => refused(format!("WRITE, sent {} times", answer.sends), status),
        }
    }

    /// Makes a file's content stable as a client must: writes whose verifier differs from that of the COMMIT
    /// are repeated.
    pub(super) fn commit(&mut self, file: FileId) -> Result<()> {
        while let Some(Some(known)) = self.files.get(file.0)
            && !known.pending().is_empty()
        {
            let handle = known.handle;
            let call = Call::Commit(CommitArgs { file: handle.as_handle(), offset: 0, count: 0 });
            let answer = self.call(&call, &[])?;
            let verifier = match answer.results::<CommitReply>()? {
                Reply::Ok(ok) => ok.verifier,
                Reply::Failed(status, _) => return refused("COMMIT", status),
            };
            if self.file_mut(file)?.commit(verifier) {
                break;
            }
            for Pending { offset, bytes, .. } in self.file_mut(file)?.take_pending() {
                if let Some(verifier) = self.send_write(file, offset, &bytes, StableHow::Unstable)? {
                    self.file_mut(file)?.write_unstable(Pending { offset, bytes, verifier });
                }
            }
        }
        Ok(())
    }

    fn truncate(&mut self, file: FileId) -> Result<()> {
        self.commit(file)?;
        let len = self.random.usize(..OFFSET_LIMIT);
        let object = self.file(file)?.handle;
        let attributes = Sattr3 { size: Some(len as u64), ..Sattr3::default() };
        let call = Call::Setattr(SetattrArgs { object: object.as_handle(), attributes, guard: None });
        let answer = self.call(&call, &[])?;
        match answer.results::<SetattrReply>()? {
            Reply::Ok(_) => self.file_mut(file)?.truncate(len),
            Reply::Failed(status, _) => return refused("SETATTR", status),
        }
        Ok(())
    }

    /// Reads all of a file with known content.
    fn read(&mut self, file: FileId) -> Result<()> {
        let Some(expected) = self.file(file)?.content().map(<[u8]>::to_vec) else { return Ok(()) };
        let handle = self.file(file)?.handle;
        let mut content = Vec::new();
        loop {
            let offset = content.len() as u64;
            let call = Call::Read(ReadArgs { file: handle.as_handle(), offset, count: READ_BYTES });
            let answer = self.call(&call, &[])?;
            match answer.results::<ReadReply>()? {
                Reply::Ok(ok) => {
                    content.extend_from_slice(&answer.record()[ok.data.range(answer.record().len())?]);
                    if ok.eof {
                        break;
                    }
                    if ok.count == 0 {
                        return wrong("READ returned no data before the end of the file");
                    }
                }
                Reply::Failed(status, _) => return refused("READ", status),
            }
        }
        if content == expected {
            return Ok(());
        }
        let at = content.iter().zip(&expected).take_while(|(is, was)| is == was).count();
        wrong(format!(
            "READ: {} bytes where {} were acknowledged as stable, and from byte {at} on they differ",
            content.len(),
            expected.len()
        ))
    }
}
