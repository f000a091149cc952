//! Handshake: start of TLS, negotiation of reply formats, and selection of an export.

use std::sync::Arc;

use tombolo_core::block::{BlockDevice, SECTOR_BYTES};
use tombolo_host_tls::ServerTls;
use tombolo_mem::Source;
use tombolo_sys::Errno;
use tombolo_sys::gather::Gather;
use tombolo_wire_nbd::{
    BASE_ALLOCATION, ClientFlags, ClientOption, EXPORT_ZEROES_BYTES, Greeting, HandshakeFlags, HeaderStyle,
    Info, OptionCode, OptionHead, OptionReply, Refusal, ReplyStyle,
};

use crate::connection::{Connection, ConnectionEnd};
use crate::exports::{Exports, block_sizes, flags};

/// Id of `base:allocation` in replies.
pub(crate) const CONTEXT: u32 = 1;

/// Options negotiated so far that affect the transmission.
#[derive(Default)]
pub(crate) struct NegotiatedOptions {
    pub(crate) style: ReplyStyle,
    /// Export for which `base:allocation` is selected.
    context_of: Option<String>,
}

impl NegotiatedOptions {
    pub(crate) fn header_style(&self) -> HeaderStyle {
        if self.style == ReplyStyle::Extended { HeaderStyle::Extended } else { HeaderStyle::Compact }
    }
}

/// Outcome of the handshake.
pub(crate) struct SelectedExport {
    pub(crate) name: String,
    pub(crate) disk: Arc<dyn BlockDevice>,
    pub(crate) style: ReplyStyle,
    pub(crate) header_style: HeaderStyle,
    pub(crate) has_context: bool,
}

/// The handshake of one connection.
pub(crate) struct Handshake<'a> {
    pub(crate) exports: &'a Exports,
    /// Configuration of TLS; if set, the client must start TLS before other options.
    pub(crate) tls: Option<&'a ServerTls>,
    no_zeroes: bool,
    negotiated: NegotiatedOptions,
    answer: Vec<u8>,
}

impl<'a> Handshake<'a> {
    pub(crate) fn new(exports: &'a Exports, tls: Option<&'a ServerTls>) -> Self {
        Self { exports, tls, no_zeroes: false, negotiated: NegotiatedOptions::default(), answer: Vec::new() }
    }

    /// Runs the handshake until the client has chosen an export.
    pub(crate) fn run(mut self, connection: &mut Connection) -> Result<SelectedExport, ConnectionEnd> {
        let greeting = Greeting(HandshakeFlags::FIXED_NEWSTYLE | HandshakeFlags::NO_ZEROES).encode();
        send(connection, &greeting)?;
        let mut client_flags = [0; 4];
        client_flags.copy_from_slice(connection.take(4)?);
        let client_flags = ClientFlags::from_bits_retain(u32::from_be_bytes(client_flags));
        if !client_flags.difference(ClientFlags::FIXED_NEWSTYLE | ClientFlags::NO_ZEROES).is_empty() {
            return Err(ConnectionEnd::Refused("the client set an unknown handshake flag"));
        }
        self.no_zeroes = client_flags.contains(ClientFlags::NO_ZEROES);
        loop {
            let mut head = [0; OptionHead::BYTES];
            head.copy_from_slice(connection.take(OptionHead::BYTES)?);
            let head = OptionHead::decode(&head)?;
            let data = connection.take(head.data_bytes)?.to_vec();
            let selected = match ClientOption::decode(head.code, &data) {
                Ok(ClientOption::StartTls) => self.start_tls(connection)?,
                Ok(option) => self.option(head.code, &option, connection.replies.stream.is_secure())?,
                Err(fault) if head.code == OptionCode::EXPORT_NAME => return Err(fault.into()),
                Err(fault) => self.refuse(head.code, Refusal::INVALID, &fault.to_string()),
            };
            send(connection, &std::mem::take(&mut self.answer))?;
            if let Some(selected) = selected {
                return Ok(selected);
            }
        }
    }

    fn option(
        &mut self,
        code: OptionCode,
        option: &ClientOption<'_>,
        is_secure: bool,
    ) -> Result<Option<SelectedExport>, ConnectionEnd> {
        match option {
            ClientOption::Abort => return Err(ConnectionEnd::Leave),
            ClientOption::ExportName(_) if self.tls.is_some() && !is_secure => {
                return Err(ConnectionEnd::Refused("the client does not start TLS"));
            }
            _ if self.tls.is_some() && !is_secure => {
                return Ok(self.refuse(code, Refusal::TLS_REQUIRED, "this server requires TLS"));
            }
            ClientOption::ExportName(name) => return self.export_name(name).map(Some),
            ClientOption::List => {
                for name in self.exports.names() {
                    OptionReply::Server(name).encode(&mut self.answer, code);
                }
                self.reply(code, OptionReply::Ack);
            }
            ClientOption::Info { export, go, respects_block_sizes } => {
                return Ok(self.info(code, export, *go, *respects_block_sizes));
            }
            ClientOption::StructuredReply if self.negotiated.style == ReplyStyle::Extended => {
                self.refuse(
                    code,
                    Refusal::EXTENDED_HEADERS_REQUIRED,
                    "extended headers have been negotiated",
                );
            }
            ClientOption::StructuredReply => self.set_reply_style(code, ReplyStyle::Structured),
            ClientOption::ExtendedHeaders => self.set_reply_style(code, ReplyStyle::Extended),
            ClientOption::MetaContext { export, set, queries } => {
                self.meta_context(code, export, *set, &queries.collect::<Vec<_>>());
            }
            ClientOption::StartTls | ClientOption::Unknown => {
                self.refuse(code, Refusal::UNSUPPORTED, "");
            }
        }
        Ok(None)
    }

    fn set_reply_style(&mut self, code: OptionCode, style: ReplyStyle) {
        self.negotiated.style = style;
        self.reply(code, OptionReply::Ack);
    }

    fn export_name(&mut self, name: &str) -> Result<SelectedExport, ConnectionEnd> {
        let selected =
            self.select(name).ok_or(ConnectionEnd::Refused("the client requested an unknown export"))?;
        let can_df = selected.style != ReplyStyle::Simple;
        self.answer.extend(selected.disk.geometry().size_bytes.to_be_bytes());
        self.answer.extend(flags(&*selected.disk, can_df).bits().to_be_bytes());
        if !self.no_zeroes {
            self.answer.extend([0; EXPORT_ZEROES_BYTES]);
        }
        Ok(selected)
    }

    fn info(
        &mut self,
        code: OptionCode,
        name: &str,
        go: bool,
        respects_block_sizes: bool,
    ) -> Option<SelectedExport> {
        let Some(selected) = self.select(name) else {
            return self.refuse(code, Refusal::UNKNOWN, "no such export");
        };
        let sizes = block_sizes(&*selected.disk);
        let size_bytes = selected.disk.geometry().size_bytes;
        let flags = flags(&*selected.disk, selected.style != ReplyStyle::Simple);
        // A client that does not request block sizes uses sectors.
        if go && !respects_block_sizes && sizes.minimum > SECTOR_BYTES {
            return self.refuse(
                code,
                Refusal::BLOCK_SIZE_REQUIRED,
                "the block size of the export exceeds 512 bytes",
            );
        }
        self.reply(code, OptionReply::Info(Info::Export { size_bytes, flags }));
        self.reply(code, OptionReply::Info(Info::Name(&selected.name)));
        self.reply(code, OptionReply::Info(Info::BlockSize(sizes)));
        self.reply(code, OptionReply::Ack);
        go.then_some(selected)
    }

    fn meta_context(&mut self, code: OptionCode, name: &str, set: bool, queries: &[&str]) {
        if self.negotiated.style == ReplyStyle::Simple {
            self.refuse(code, Refusal::INVALID, "structured replies must be negotiated first");
            return;
        }
        let Some((name, _)) = self.exports.find(name) else {
            self.refuse(code, Refusal::UNKNOWN, "no such export");
            return;
        };
        let mut is_meant = queries.contains(&BASE_ALLOCATION);
        if set {
            self.negotiated.context_of = is_meant.then(|| name.to_owned());
        } else {
            // In NBD_OPT_LIST_META_CONTEXT no queries mean all contexts, a namespace all contexts in it.
            is_meant |= queries.is_empty() || queries.contains(&"base:");
        }
        if is_meant {
            self.reply(
                code,
                OptionReply::MetaContext { id: if set { CONTEXT } else { 0 }, name: BASE_ALLOCATION },
            );
        }
        self.reply(code, OptionReply::Ack);
    }

    /// Starts TLS. Earlier negotiation is discarded.
    fn start_tls(&mut self, connection: &mut Connection) -> Result<Option<SelectedExport>, ConnectionEnd> {
        let code = OptionCode::STARTTLS;
        let Some(tls) = self.tls else {
            return Ok(self.refuse(code, Refusal::POLICY, "this server does not support TLS"));
        };
        // Plaintext bytes received after the option would be taken for bytes of the TLS session.
        if connection.replies.stream.is_secure() || connection.buffered() > 0 {
            return Ok(self.refuse(code, Refusal::INVALID, "TLS cannot start now"));
        }
        self.reply(code, OptionReply::Ack);
        send(connection, &std::mem::take(&mut self.answer))?;
        let session = tls.session().map_err(|_| ConnectionEnd::Refused("cannot create a TLS session"))?;
        loop {
            match session.handshake(connection.replies.stream.socket()) {
                Ok(()) => break,
                Err(Errno::AGAIN) => connection.wait(None)?,
                Err(error) => {
                    let fault = session.fault().map(|fault| fault.to_string());
                    tracing::warn!(%error, fault, "NBD: TLS handshake failed");
                    return Err(ConnectionEnd::Gone);
                }
            }
        }
        tracing::info!(peer = session.peer().map(|peer| peer.to_string()), "NBD: TLS session established");
        connection.replies.stream.secure(session);
        self.negotiated = NegotiatedOptions::default();
        Ok(None)
    }

    fn select(&self, name: &str) -> Option<SelectedExport> {
        let (name, disk) = self.exports.find(name)?;
        Some(SelectedExport {
            name: name.to_owned(),
            disk: disk.clone(),
            style: self.negotiated.style,
            header_style: self.negotiated.header_style(),
            has_context: self.negotiated.context_of.as_deref() == Some(name),
        })
    }

    fn refuse(&mut self, code: OptionCode, refusal: Refusal, word: &str) -> Option<SelectedExport> {
        self.reply(code, OptionReply::Refused(refusal, word));
        None
    }

    fn reply(&mut self, code: OptionCode, reply: OptionReply<'_>) {
        reply.encode(&mut self.answer, code);
    }
}

/// Sends all bytes, waiting for the socket within the connection's time limits.
fn send(connection: &mut Connection, bytes: &[u8]) -> Result<(), ConnectionEnd> {
    let source = Source::from(bytes.to_vec());
    let mut sent = 0;
    while sent < bytes.len() {
        let mut gather = Gather::new(sent);
        gather.source(&source);
        match connection.replies.stream.send(&mut gather) {
            Ok(more) => sent += more,
            Err(Errno::AGAIN) => connection.wait(None)?,
            Err(_) => return Err(ConnectionEnd::Gone),
        }
    }
    Ok(())
}
