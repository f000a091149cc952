//! Commands for NFS clients.

use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};

use super::quoted;
use crate::location::encoded;

/// Address in QEMU's user network (slirp) at which a guest reaches servers on the host's loopback address.
const QEMU_HOST: &str = "10.0.2.2";

/// Prints a line for each kind of client that can mount the export at this address. `host` is the name of
/// this host for remote clients.
pub fn for_clients(out: &mut impl Write, address: SocketAddr, export: &str, host: &str) -> io::Result<()> {
    let port = address.port();
    let (host, tcp) = match address.ip() {
        ip if ip.is_unspecified() => (host.to_owned(), "tcp"),
        IpAddr::V4(ip) => (ip.to_string(), "tcp"),
        IpAddr::V6(ip) => (format!("[{ip}]"), "tcp6"),
    };
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
    let path = if export == "/" { "" } else { export };
    let path = encoded(path.as_bytes());
    let url = format!("nfs://{host}{path}?nfsport={port}&mountport={port}&version=3");
    writeln!(out, "  libnfs:     {}", quoted(&url))?;
    writeln!(
        out,
        "  macOS (untested): mount -t nfs -o vers=3,tcp,port={port},mountport={port},nolocks,resvport {} /private/mnt",
        quoted(&format!("{host}:{export}"))
    )
}

/// Prints the command for clients of an address that serves TLS only. The server's certificate must match the
/// name used.
pub fn for_tls_clients(
    out: &mut impl Write,
    address: SocketAddr,
    export: &str,
    host: &str,
) -> io::Result<()> {
    let host = match address.ip() {
        ip if ip.is_unspecified() => host.to_owned(),
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => format!("[{ip}]"),
    };
    let path = if export == "/" { "" } else { export };
    let url = format!("nfs://{host}:{}{}?xprtsec=mtls", address.port(), encoded(path.as_bytes()));
    writeln!(out, "  tombolo:    tombolo mount {} DIR", quoted(&url))
}

/// Returns the interfaces for the `ready` line of NFS; empty for the address of a single one.
pub fn reach(ip: IpAddr) -> &'static str {
    match ip {
        ip if ip.is_loopback() => " interfaces=loopback",
        ip if ip.is_unspecified() => " interfaces=all",
        _ => "",
    }
}

/// Returns the host name; `localhost` if none is set.
pub fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match name.trim() {
        "" | "(none)" => "localhost".to_owned(),
        name => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::text;
    use super::*;

    fn text_of(address: &str, export: &str) -> String {
        let address = address.parse().expect("an address");
        text(|out| for_clients(out, address, export, "ship"))
    }

    #[test]
    fn nfs_hints_cover_each_kind_of_client() {
        let here = text_of("127.0.0.1:2049", "/src");
        for line in [
            "Linux:      mount -t nfs -o vers=3,proto=tcp,port=2049,mountport=2049,mountproto=tcp,nolock 127.0.0.1:/src /mnt",
            "mountproto=tcp,nolock 10.0.2.2:/src /mnt",
            "libnfs:     'nfs://127.0.0.1/src?nfsport=2049&mountport=2049&version=3'",
            "macOS (untested): mount -t nfs -o vers=3,tcp,port=2049,mountport=2049,nolocks,resvport 127.0.0.1:/src",
        ] {
            assert!(here.contains(line), "{line}\nnot in\n{here}");
        }
        assert!(!text_of("192.0.2.1:2049", "/src").contains("10.0.2.2"), "loopback is not reached there");
        assert!(
            text_of("0.0.0.0:2049", "/src").contains("ship:/src")
                && text_of("0.0.0.0:2049", "/src").contains("10.0.2.2")
        );
        let six = text_of("[fd00::1]:2049", "/src");
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
    fn nfs_ready_line_names_reachable_interfaces() {
        let reach = |ip: &str| reach(ip.parse().expect("an address"));
        assert_eq!((reach("127.0.0.1"), reach("::1")), (" interfaces=loopback", " interfaces=loopback"));
        assert_eq!(
            (reach("0.0.0.0"), reach("::"), reach("192.0.2.1")),
            (" interfaces=all", " interfaces=all", "")
        );
    }
}
