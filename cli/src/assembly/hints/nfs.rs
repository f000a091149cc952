//! What NFS clients are told.

use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};

use super::quoted;
use crate::location::encoded;

/// An export at a port.
#[derive(Debug)]
pub struct NfsHint<'a> {
    /// Where it is served.
    pub address: SocketAddr,
    /// What clients mount.
    pub export: &'a str,
    /// What this machine is called, for clients elsewhere.
    pub host: &'a str,
}

/// What QEMU's user network calls the machine that it runs on (slirp; only its loopback).
const QEMU_HOST: &str = "10.0.2.2";

impl NfsHint<'_> {
    /// Writes a line for each kind of client.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let Self { address, export, .. } = self;
        let port = address.port();
        let host = self.host();
        let tcp = if host.starts_with('[') { "tcp6" } else { "tcp" };
        let linux = |host: &str, tcp: &str| {
            let source = format!("{host}:{export}");
            format!(
                "mount -t nfs -o vers=3,proto={tcp},port={port},mountport={port},mountproto={tcp},nolock {} /mnt",
                quoted(&source)
            )
        };
        writeln!(out, "  Linux:      {}", linux(&host, tcp))?;
        if matches!(address.ip(), IpAddr::V4(ip) if ip.is_loopback() || ip.is_unspecified()) {
            writeln!(out, "  QEMU guest on the user network: {}", linux(QEMU_HOST, "tcp"))?;
        }
        let path = if *export == "/" { "" } else { export };
        let path = encoded(path.as_bytes());
        let url = format!("nfs://{host}{path}?nfsport={port}&mountport={port}&version=3");
        writeln!(out, "  libnfs:     {}", quoted(&url))?;
        writeln!(
            out,
            "  macOS (untested): mount -t nfs -o vers=3,tcp,port={port},mountport={port},nolocks,resvport {} /private/mnt",
            quoted(&format!("{host}:{export}"))
        )
    }

    fn host(&self) -> String {
        match self.address.ip() {
            ip if ip.is_unspecified() => self.host.to_owned(),
            IpAddr::V4(ip) => ip.to_string(),
            IpAddr::V6(ip) => format!("[{ip}]"),
        }
    }
}

/// Where callers can be, for the line that says that NFS is ready; nothing if the address tells it.
pub fn reach(ip: IpAddr) -> &'static str {
    match ip {
        ip if ip.is_loopback() => " interfaces=loopback",
        ip if ip.is_unspecified() => " interfaces=all",
        _ => "",
    }
}

/// What this machine calls itself; `localhost` if it does not say.
pub fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match name.trim() {
        "" | "(none)" => "localhost".to_owned(),
        name => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(address: &str) -> String {
        text_of(address, "/src")
    }

    fn text_of(address: &str, export: &str) -> String {
        let hint = NfsHint { address: address.parse().expect("an address"), export, host: "ship" };
        let mut out = Vec::new();
        hint.write(&mut out).expect("memory takes it");
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn each_kind_of_client_gets_its_words() {
        let here = text("127.0.0.1:2049");
        for line in [
            "Linux:      mount -t nfs -o vers=3,proto=tcp,port=2049,mountport=2049,mountproto=tcp,nolock 127.0.0.1:/src /mnt",
            "mountproto=tcp,nolock 10.0.2.2:/src /mnt",
            "libnfs:     'nfs://127.0.0.1/src?nfsport=2049&mountport=2049&version=3'",
            "macOS (untested): mount -t nfs -o vers=3,tcp,port=2049,mountport=2049,nolocks,resvport 127.0.0.1:/src",
        ] {
            assert!(here.contains(line), "{line}\nnot in\n{here}");
        }
        assert!(!text("192.0.2.1:2049").contains("10.0.2.2"), "loopback is not reached there");
        assert!(text("0.0.0.0:2049").contains("ship:/src") && text("0.0.0.0:2049").contains("10.0.2.2"));
        let six = text("[fd00::1]:2049");
        assert!(six.contains("proto=tcp6") && six.contains("'[fd00::1]:/src' /mnt"), "{six}");
    }

    #[test]
    fn odd_names_survive_the_shell() {
        let odd = text_of("127.0.0.1:2049", "/it's mine");
        assert!(odd.contains(r"nolock '127.0.0.1:/it'\''s mine' /mnt"), "{odd}");
        assert!(odd.contains(r"resvport '127.0.0.1:/it'\''s mine' /private/mnt"), "{odd}");
        assert!(odd.contains(r"'nfs://127.0.0.1/it'\''s%20mine?nfsport="), "{odd}");
    }

    #[test]
    fn it_is_said_from_where_callers_can_come() {
        let reach = |ip: &str| reach(ip.parse().expect("an address"));
        assert_eq!((reach("127.0.0.1"), reach("::1")), (" interfaces=loopback", " interfaces=loopback"));
        assert_eq!(
            (reach("0.0.0.0"), reach("::"), reach("192.0.2.1")),
            (" interfaces=all", " interfaces=all", "")
        );
    }
}
