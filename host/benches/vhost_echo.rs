//! Round trips of small requests through a virtqueue, for each length of spinning: `cargo bench -p tombolo-host`.
#![allow(clippy::print_stdout, reason = "it prints a table")]

use std::borrow::Cow;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tombolo_host::vhost_user::driver::{Driver, DriverQueue, DriverSettings, Wait};
use tombolo_host::vhost_user::{Chain, Device, QueueIndex, Server, Settings};

struct Echo;

impl Device for Echo {
    fn name(&self) -> &str {
        "echo"
    }

    fn config(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(&[])
    }

    fn queue_count(&self) -> u16 {
        1
    }

    fn handle(&self, _queue: QueueIndex, chain: Chain) {
        let written = chain.readable.copy_to_sink(&chain.writable);
        chain.complete(written);
    }
}

const SPINS_US: [u64; 4] = [0, 20, 50, 200];

fn main() {
    println!(
        "  cores  spin us   guest  pause    p50 us    p99 us    cpu us requests/s   (medians of 9 rounds in turn)"
    );
    for cores in [Cores::Two, Cores::One] {
        for (wait, pause_us) in [(Wait::Poll, 0), (Wait::Event, 0), (Wait::Event, 20), (Wait::Event, 200)] {
            let mut rounds = vec![Vec::new(); SPINS_US.len()];
            for _ in 0..9 {
                for (spin_us, round) in SPINS_US.iter().zip(&mut rounds) {
                    round.push(measure(cores, *spin_us, wait, pause_us));
                }
            }
            for (spin_us, round) in SPINS_US.iter().zip(&rounds) {
                let column = |at: usize| median(round.iter().map(|row| row[at]).collect());
                let (cores, guest) = (format!("{cores:?}"), format!("{wait:?}"));
                print!("{cores:>7} {spin_us:>8} {guest:>7} {pause_us:>6} ");
                println!("{:>9.2} {:>9.2} {:>9.2} {:>10.0}", column(0), column(1), column(2), column(3));
            }
        }
        println!("{cores:?}: 32 requests outstanding, polling: {:.0} requests/s", throughput(cores));
    }
}

/// Whether guest and server share a core.
#[derive(Debug, Clone, Copy)]
enum Cores {
    One,
    Two,
}

/// Median and 99th percentile in microseconds, processor time for each in microseconds, and requests per second.
fn measure(cores: Cores, spin_us: u64, wait: Wait, pause_us: u64) -> [f64; 4] {
    let bed = Bed::new(cores, spin_us, DriverSettings { wait, ..DriverSettings::default() });
    let Bed { mut queue, _driver, _server, _folder } = bed;
    let (request, answer) = (queue.alloc(64).unwrap(), queue.alloc(128).unwrap());
    let parts = [request.readable(), answer.writable()];
    let (mut times, pause) = (Vec::new(), Duration::from_micros(pause_us));
    let (begin, cpu) = (Instant::now(), cpu_time());
    while begin.elapsed() < Duration::from_millis(100) {
        let start = Instant::now();
        queue.submit(&parts).unwrap();
        queue.wait_used(Duration::from_secs(1)).unwrap();
        times.push(start.elapsed().as_nanos() as f64 / 1000.0);
        let rest = Instant::now();
        while rest.elapsed() < pause {
            std::hint::spin_loop();
        }
    }
    let (count, seconds) = (times.len() as f64, begin.elapsed().as_secs_f64());
    let cpu_us = (cpu_time() - cpu).as_secs_f64() * 1e6 / count;
    times.sort_by(f64::total_cmp);
    [times[times.len() / 2], times[times.len() * 99 / 100], cpu_us, count / seconds]
}

fn throughput(cores: Cores) -> f64 {
    let settings = DriverSettings { wait: Wait::Poll, ..DriverSettings::default() };
    let Bed { mut queue, _driver, _server, _folder } = Bed::new(cores, 50, settings);
    let pairs: Vec<_> = (0..32).map(|_| [queue.alloc(64).unwrap(), queue.alloc(128).unwrap()]).collect();
    for [request, answer] in &pairs {
        queue.submit(&[request.readable(), answer.writable()]).unwrap();
    }
    let (begin, mut count) = (Instant::now(), 0);
    while begin.elapsed() < Duration::from_secs(1) {
        queue.wait_used(Duration::from_secs(1)).unwrap();
        let [request, answer] = pairs[count % 32];
        queue.submit(&[request.readable(), answer.writable()]).unwrap();
        count += 1;
    }
    count as f64 / begin.elapsed().as_secs_f64()
}

struct Bed {
    queue: DriverQueue,
    _driver: Driver,
    _server: Server,
    _folder: tempfile::TempDir,
}

impl Bed {
    fn new(cores: Cores, spin_us: u64, settings: DriverSettings) -> Bed {
        pin(if matches!(cores, Cores::Two) { 1 } else { 0 });
        let folder = tempfile::TempDir::new().unwrap();
        let socket = folder.path().join("echo.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let spin_max = Duration::from_micros(spin_us);
        let server = Server::start(
            listener,
            Settings { spin_max, ..Settings::default() },
            Box::new(|_| {
                let device: Arc<dyn Device> = Arc::new(Echo);
                Ok(device)
            }),
        );
        let (driver, mut queues) = Driver::connect(&socket, settings).unwrap();
        pin(0);
        Bed { queue: queues.remove(0), _driver: driver, _server: server.unwrap(), _folder: folder }
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Keeps this thread, and those that it starts from now on, on one core.
fn pin(core: usize) {
    let mut cores = rustix::thread::CpuSet::new();
    cores.set(core);
    rustix::thread::sched_setaffinity(None, &cores).unwrap();
}

/// Processor time of the whole process.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
