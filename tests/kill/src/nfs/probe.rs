//! The write verifier (RFC 1813 §3.3.7): unique to each server process, so that clients notice the loss of
//! uncommitted data.

use tombolo_wire_nfs3::args::{CreateArgs, CreateHow, DirOpArgs, StableHow, WriteArgs};
use tombolo_wire_nfs3::results::{CreateReply, WriteReply};
use tombolo_wire_nfs3::{Call, Data, FileHandle, FileHandleBuf, Reply, Sattr3, WriteVerifier};

use crate::failure::{Failure, Result, refused, wrong};
use crate::nfs::client::Client;

/// A record of the verifiers of all processes.
#[derive(Debug)]
pub struct Probe {
    client: Client,
    file: FileHandleBuf,
    seen: Vec<WriteVerifier>,
}

impl Probe {
    /// Creates a file below `root` to write to.
    pub fn new(mut client: Client, root: FileHandle<'_>) -> Result<Self> {
        let location = DirOpArgs { dir: root, name: b"probe" };
        let call = client
            .nfs(&Call::Create(CreateArgs { location, how: CreateHow::Unchecked(Sattr3::default()) }), &[]);
        let answer = client.exchange(&call)?;
        let Reply::Ok(made) = answer.results::<CreateReply<'_>>()? else { return wrong("no file to probe") };
        let handle = made.object.map(FileHandle::to_owned);
        let file = handle.ok_or_else(|| Failure::Wrong("no handle of the new object".into()))?;
        Ok(Self { client, file, seen: Vec::new() })
    }

    /// Checks that the verifier is new. Called once in the life of each server.
    pub fn is_another(&mut self) -> Result<()> {
        let verifier = self.write()?;
        if self.seen.contains(&verifier) {
            return wrong(format!("a new server has an old write verifier, {verifier:?}"));
        }
        if self.write()? != verifier {
            return wrong("the write verifier changed while nothing was lost");
        }
        self.seen.push(verifier);
        Ok(())
    }

    fn write(&mut self) -> Result<WriteVerifier> {
        let bytes = [0; 8];
        let (file, data) = (self.file.as_handle(), Data::to_send(bytes.len() as u32));
        let args = WriteArgs { file, offset: 0, count: data.len_bytes(), stable: StableHow::Unstable, data };
        let call = self.client.nfs(&Call::Write(args), &bytes);
        match self.client.exchange(&call)?.results::<WriteReply>()? {
            Reply::Ok(ok) => Ok(ok.verifier),
            Reply::Failed(status, _) => refused("WRITE", status),
        }
    }
}
