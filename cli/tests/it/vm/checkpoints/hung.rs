//! Checkpoints while a server or the VMM does not respond.

use tombolo_vhost_driver::{Driver, DriverQueue, DriverSettings};

use super::*;
use crate::common::words;
use crate::disk::{IN, OUT, ask};

#[test]
fn hung_server_fails_checkpoint_and_guest_runs_on() {
    for server in ["disk", "memory"] {
        let (bed, told) = Bed::with_clone("none", Flaw::Slow("migrate"));
        bed.remember("kept  ");
        let pids = bed
            .processes("one")
            .into_iter()
            .filter(|(_, words)| words.contains(&format!("{server}.overlay")));
        let pids: Vec<_> = pids.map(|(pid, _)| pid.as_raw_nonzero().get().unsigned_abs()).collect();
        let all = |name: &str| pids.iter().for_each(|pid| signal(*pid, name));
        let begin = || {
            let command = bed.tombolo("vm checkpoint one");
            thread::spawn(move || Ran::new(command))
        };
        // Before the guest is paused.
        let _ = commands(&told);
        all("STOP");
        let said = format!("the server of its {server} does not respond");
        let checkpoint = begin();
        until("it fails", || checkpoint.is_finished());
        checkpoint.join().expect("no panic").failed(1, &[&said]);
        assert_eq!(commands(&told), [""; 0]);
        all("CONT");
        // In the pause.
        let checkpoint = begin();
        told.iter().find(|(command, _)| command == "migrate").expect("it is told");
        all("STOP");
        fs::write(bed.path("vmm.one.free"), "").expect("write");
        let began = Instant::now();
        until("the guest runs on", || commands(&told).contains(&"cont".into()));
        assert!(began.elapsed() < Duration::from_secs(20), "{server}: {:?}", began.elapsed());
        all("CONT");
        checkpoint.join().expect("no panic").failed(1, &["server", "does not respond"]);
        assert!(bed.is("one", "running"), "{}", bed.list());
        assert_eq!(bed.numbered(), [""; 0]);
        // A late reply is not taken for another one.
        bed.remember("later ");
        bed.checkpoint("");
        bed.remember("last  ");
        bed.run("vm stop one").succeeded();
        bed.run("vm restore one").succeeded();
        assert_eq!(bed.resumed(), "later ", "{server}");
    }
}

/// Writes a word to the memory of the VM, past the kernel's cache. Returns whether that succeeded.
fn is_written_directly(bed: &Bed, word: &str) -> bool {
    let page = bed.path("page");
    fs::write(&page, format!("{word:4096}")).expect("write");
    let [from, to] = [("if", page), ("of", bed.memory_of_clone("one"))]
        .map(|(word, file)| format!("{word}={}", file.display()));
    let line = format!("{from} {to} bs=4096 count=1 conv=notrunc oflag=direct status=none");
    let mut written = Command::new("dd").args(words(&line)).spawn().expect("spawn");
    until("it is written", || written.try_wait().expect("its end").is_some());
    written.wait().expect("its end").success()
}

#[test]
fn memory_is_written_while_vmm_resumes_slowly() {
    let (bed, told) = Bed::with_clone("none", Flaw::ResumesSlowly);
    let _ = commands(&told);
    let mut checkpoint = bed.begun("vm checkpoint one");
    told.iter().find(|(command, _)| command == "cont").expect("it is told");
    // The VMM may wait for the writeback of a page.
    assert!(is_written_directly(&bed, "written"));
    fs::write(bed.path("vmm.one.free"), "").expect("write");
    assert!(checkpoint.wait().expect("its end").success());
}

#[test]
fn memory_of_second_vmm_is_written_before_it_runs() {
    let bed = Bed::new();
    let _first = bed.boot("one", "none", Flaw::None);
    let next = bed.successor("one", Flaw::Slow("cont"));
    let mut checkpoint = bed.begun("vm checkpoint one");
    next.iter().find(|(command, _)| command == "cont").expect("it is told");
    assert!(is_written_directly(&bed, "second"));
    fs::write(bed.path("vmm.one.free"), "").expect("write");
    assert!(checkpoint.wait().expect("its end").success());
    assert_eq!(at(&bed.memory_of_clone("one"), 0, 6), "second");
    assert_ne!(at(&bed.vm("one").join("memory"), 0, 6), "second", "of the checkpoint");
}

/// Puts a write of one sector on the queue.
fn submit_write(queue: &mut DriverQueue, sector: u64) {
    let [head, body, status] = [16, 512, 1].map(|len| queue.alloc(len).expect("guest memory"));
    queue.write(head, &(u128::from(OUT) | u128::from(sector) << 64).to_le_bytes());
    queue.write(body, &[7; 512]);
    queue.submit(&[head.readable(), body.readable(), status.writable()]).expect("room");
}

#[test]
fn writes_of_an_abandoned_vmm_reach_no_disk() {
    let bed = Bed::new();
    let _first = bed.boot("one", "none", Flaw::None);
    let next = bed.successor("one", Flaw::Silent("cont"));
    let disk = bed.path("run/tombolo/vm-one/disk");
    // The queue of the first VMM, which is paused, runs again later.
    let stream = UnixStream::connect(&disk).expect("connect");
    let mut first = Driver::open(stream, DriverSettings::default()).expect("connect");
    let mut checkpoint = bed.begun("vm checkpoint one");
    next.iter().find(|(command, _)| command == "cont").expect("it is told");
    let (second, mut queues) = Driver::connect(&disk, DriverSettings::default()).expect("connect");
    submit_write(&mut queues[0], 0);
    // The VMM loses its monitor, and is killed.
    fs::write(bed.path("vmm.one.free"), "").expect("write");
    let vmms = || bed.processes("one").iter().filter(|(_, words)| words.contains("guest=")).count();
    until("one VMM is left", || vmms() == 1);
    // The disk's server may notice later that the connection has ended, and still takes requests until then.
    let moment = Duration::from_millis(500);
    let _ = queues[0].wait_used(moment);
    submit_write(&mut queues[0], 1);
    let _ = queues[0].wait_used(moment);
    drop((second, queues));
    assert!(!checkpoint.wait().expect("its end").success());
    first.share_memory().expect("share");
    let mut queue = first.start_queue(0, 0).expect("start");
    for sector in [0, 1] {
        assert_eq!(ask(&mut queue, IN, sector, &[0; 512]), (vec![0; 512], 0), "sector {sector}");
    }
    assert_eq!(ask(&mut queue, OUT, 2, &[7; 512]).1, 0, "the guest goes on");
}
