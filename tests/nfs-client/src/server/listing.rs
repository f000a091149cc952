//! Directories made up by tests.

use tombolo_wire_nfs3::{Call, Fattr3};
use tombolo_wire_xdr::Encoder;

use super::{ReceivedCall, ScriptedReply};

/// One page of a directory.
pub struct Page {
    /// Names and cookies.
    pub entries: Vec<(String, u64)>,
    /// `true` for the last page.
    pub eof: bool,
}

/// Answers READDIR and READDIRPLUS with the page of the requested cookie. READDIRPLUS returns handle and
/// attributes of `node` with each entry, or neither.
pub fn listing(
    node: Option<Fattr3>,
    page: impl Fn(u64) -> Page,
) -> impl Fn(&ReceivedCall<'_>) -> ScriptedReply {
    move |asked| {
        let (cookie, plus) = match asked.call() {
            Some(Call::Readdir(args)) => (args.cookie.0, false),
            Some(Call::Readdirplus(args)) => (args.cookie.0, true),
            _ => return ScriptedReply::Forward,
        };
        let page = page(cookie);
        let mut results = Vec::new();
        let mut xdr = Encoder::new(&mut results);
        xdr.u32(0).bool(false).u64(0x1234);
        for (name, cookie) in &page.entries {
            xdr.bool(true).u64(1000 + cookie).opaque(name.as_bytes()).u64(*cookie);
            match node {
                Some(fattr) if plus => {
                    xdr.bool(true).value(&Fattr3 { fileid: 1000 + cookie, ..fattr });
                    xdr.bool(true).opaque(&[[0xff; 8], cookie.to_be_bytes()].concat());
                }
                // Neither attributes nor handle.
                None if plus => _ = xdr.bool(false).bool(false),
                _ => {}
            }
        }
        xdr.bool(false).bool(page.eof);
        ScriptedReply::Results(results)
    }
}
