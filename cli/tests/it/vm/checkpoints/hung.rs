//! Checkpoints while a server or the VMM does not respond.

use super::*;

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
            let command = bed.0.tombolo(&["vm", "checkpoint", "one"]);
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
        fs::write(bed.0.path("vmm.one.free"), "").expect("write");
        let began = Instant::now();
        until("the guest runs on", || commands(&told).contains(&"cont".into()));
        assert!(began.elapsed() < Duration::from_secs(20), "{server}: {:?}", began.elapsed());
        all("CONT");
        checkpoint.join().expect("no panic").failed(1, &["server", "does not respond"]);
        assert!(bed.is("one", "running"), "{}", bed.list());
        assert_eq!(bed.numbered(), [""; 0]);
        // A late reply is not taken for another one.
        bed.remember("later ");
        bed.checkpoint(&[]);
        bed.remember("last  ");
        bed.0.run(&["vm", "stop", "one"]).succeeded();
        bed.0.run(&["vm", "restore", "one"]).succeeded();
        assert_eq!(bed.resumed(), "later ", "{server}");
    }
}

#[test]
fn memory_is_written_while_vmm_resumes_slowly() {
    let (bed, told) = Bed::with_clone("none", Flaw::ResumesSlowly);
    let _ = commands(&told);
    let mut checkpoint = bed.begun(&["vm", "checkpoint", "one"]);
    told.iter().find(|(command, _)| command == "cont").expect("it is told");
    // The VMM may wait for the writeback of a page.
    let to = format!("of={}", bed.memory_of_clone("one").display());
    let words = ["if=/dev/zero", &to, "bs=4096", "count=1", "conv=notrunc", "oflag=direct", "status=none"];
    let mut written = Command::new("dd").args(words).spawn().expect("spawn");
    until("it is written", || written.try_wait().expect("its end").is_some());
    assert!(written.wait().expect("its end").success());
    fs::write(bed.0.path("vmm.one.free"), "").expect("write");
    assert!(checkpoint.wait().expect("its end").success());
}
