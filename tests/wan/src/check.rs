//! Self-measurement of a WAN link.

use std::io::{self, BufRead, BufReader, Write};
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::wan::Wan;

/// Measured properties of a link.
#[derive(Clone, Copy, Debug)]
pub struct Check {
    /// The fastest of several round trips.
    pub round_trip: Duration,
    /// Throughput of a bulk stream, in bits per second.
    pub rate_bits_per_s: f64,
    /// Duration of the measurement, with the start of both programs.
    pub took: Duration,
}

/// Server that sends `bytes` bytes to each client, and then exchanges single bytes.
const SERVER: &str = "
import socket, sys
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); s.bind(('0.0.0.0', 9)); s.listen(1); print('ready', flush=True)
c, _ = s.accept(); c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
for _ in range(20): c.recv(1); c.send(b'x')
c.sendall(b'x' * int(sys.argv[1])); c.close()";

const CLIENT: &str = "
import socket, sys, time
c = socket.create_connection((sys.argv[1], 9)); c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
best = 9
for _ in range(20):
    t = time.monotonic(); c.send(b'x'); c.recv(1); best = min(best, time.monotonic() - t)
t = time.monotonic(); n = 0
while True:
    d = c.recv(1 << 20)
    if not d: break
    n += len(d)
print(best, n * 8 / (time.monotonic() - t), time.monotonic() - t)";

impl Wan {
    /// Measures the round trip, and the throughput of a stream of `bytes` bytes from the far end. Requires
    /// python3.
    ///
    /// # Errors
    /// If the programs at both ends cannot be run.
    pub fn check(&self, bytes: u64) -> io::Result<Check> {
        let begun = Instant::now();
        let mut server = self.far().command("python3");
        let mut server = server
            .args(["-c", SERVER, &bytes.to_string()])
            .stdout(Stdio::piped())
            .stdin(Stdio::null())
            .spawn()?;
        let mut ready = String::new();
        if let Some(said) = server.stdout.take() {
            BufReader::new(said).read_line(&mut ready)?;
        }
        let address = self.far().address().to_string();
        let client = self.near().command("python3").args(["-c", CLIENT, &address]).output();
        let _ = server.kill();
        server.wait()?;
        let client = client?;
        let said = String::from_utf8_lossy(&client.stdout).into_owned();
        let numbers: Vec<f64> = said.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        match numbers[..] {
            [round_trip, rate, _] => Ok(Check {
                round_trip: Duration::from_secs_f64(round_trip),
                rate_bits_per_s: rate,
                took: begun.elapsed(),
            }),
            _ => {
                io::stderr().write_all(&client.stderr)?;
                Err(io::Error::other("the link carried nothing"))
            }
        }
    }
}
