//! Look-ups on a simulated machine: its files, and a script in place of getent(1).

use super::*;
use std::fs;
use tempfile::TempDir;

const CONF: &str = "passwd: files systemd\ngroup: files systemd\nhosts: files dns\n";
const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\nann:x:1000:1000::/home/ann:/bin/sh\n";
const GROUP: &str = "root:x:0:\nstaff:x:50:ann,bob\nann:x:1000:\nwheel:x:27:bob\n";

/// A script that answers by database and key.
const SERVICE: &str = r#"case "$1 $3" in
    'passwd 4321') echo 'eve:x:4321:4321::/:' ;;
    'passwd 5000') echo 'odd:x:5001:5001::/:' ;;
    'initgroups ann') echo 'ann                   60 50' ;;
    'initgroups eve') echo 'eve                   61 27' ;;
    'group far') echo 'far:x:61:eve' ;;
    'group broken') exit 3 ;;
    'ahosts nas') printf '10.0.0.7 STREAM nas\n10.0.0.7 DGRAM\nfe80::1%%2 STREAM\nfd00::7 STREAM\n' ;;
    *) exit 2 ;;
esac"#;

struct Machine {
    dir: TempDir,
    names: Names,
}

impl Machine {
    fn new(service: &str) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        for (name, text) in
            [("nsswitch.conf", CONF), ("passwd", PASSWD), ("group", GROUP), ("getent", service)]
        {
            fs::write(dir.path().join(name), text).expect("write");
        }
        // Run by its interpreter: a newly written program may still be open elsewhere (ETXTBSY).
        let getent =
            Getent::like(vec!["sh".into(), dir.path().join("getent").into()], Duration::from_secs(60));
        let names = Names::new(dir.path().to_owned(), getent);
        Self { dir, names }
    }

    fn allow(mut self, time: Duration) -> Self {
        self.names.getent.time_max = Some(time);
        self
    }

    fn groups(&self, uid: u32) -> Option<Vec<u32>> {
        let found = self.names.groups_of(uid).expect("the databases")?;
        assert_eq!(found.lacking, None);
        Some(found.groups)
    }
}

#[test]
fn files_and_services_are_both_asked() {
    let machine = Machine::new(SERVICE);
    assert_eq!(machine.groups(0), Some(vec![0]));
    assert_eq!(machine.groups(1000), Some(vec![50, 60, 1000]));
    assert_eq!(machine.groups(4321), Some(vec![27, 61, 4321]));
    assert_eq!(machine.groups(9999), None);
    assert!(matches!(machine.names.groups_of(5000), Err(LookUpError::Answer("passwd"))));
    let id = |name| machine.names.group_id(name);
    assert_eq!(id("staff").expect("in a file"), Some(50));
    assert_eq!(id("far").expect("elsewhere"), Some(61));
    assert_eq!(id("none").expect("an answer"), None);
    assert!(matches!(id("broken"), Err(LookUpError::Failed("group", _))));
}

#[test]
fn services_that_are_not_configured_are_not_asked() {
    let machine = Machine::new("touch \"$0.asked\"; exit 3");
    for conf in ["passwd: files\ngroup: files\n", ""] {
        fs::write(machine.dir.path().join("nsswitch.conf"), conf).expect("write");
        assert_eq!(machine.groups(1000), Some(vec![50, 1000]));
        assert_eq!(machine.groups(4321), None);
        assert_eq!(machine.names.group_id("far").expect("an answer"), None);
    }
    assert!(!machine.dir.path().join("getent.asked").exists());
    fs::write(machine.dir.path().join("nsswitch.conf"), "passwd: ldap\n").expect("write");
    assert!(machine.names.groups_of(1000).is_err(), "its own files are not to be asked");
}

#[test]
fn a_service_that_fails_leaves_users_their_own_groups() {
    for service in ["exit 3", "kill -SEGV $$", "echo 'ann x'", "yes", "printf 'ann \\377'"] {
        let machine = Machine::new(service);
        let found = machine.names.groups_of(1000).expect("its files").expect("a user of them");
        assert_eq!(found.groups, [50, 1000], "{service}");
        assert!(found.lacking.is_some(), "{service}");
        assert!(machine.names.groups_of(4321).is_err(), "{service}");
    }
}

#[test]
fn a_service_that_hangs_costs_a_bounded_time() {
    // The service closes its output and keeps running.
    for service in ["echo $$ >>\"$0.pids\"; exec sleep 1000", "echo $$ >>\"$0.pids\"; exec sleep 1000 >&-"] {
        let machine = Machine::new(service).allow(Duration::from_secs(1));
        let found = machine.names.groups_of(1000).expect("its files").expect("a user of them");
        assert_eq!((found.groups, found.lacking.as_deref()), (vec![50, 1000], Some("no answer within 1s")));
        // The next look-up does not wait.
        assert!(matches!(machine.names.groups_of(4321), Err(LookUpError::Silent)));
        *lock(&machine.names.silent_until) = None;
        assert!(matches!(machine.names.groups_of(4321), Err(LookUpError::TimedOut(_))));
        assert!(matches!(machine.names.addresses_of("nas"), Err(LookUpError::TimedOut(_))));
        let pids = fs::read_to_string(machine.dir.path().join("getent.pids")).unwrap_or_default();
        for pid in pids.lines() {
            assert!(!PathBuf::from(format!("/proc/{pid}")).exists(), "{pid} is left");
        }
    }
}

#[test]
fn few_processes_ask_at_once() {
    let machine = Machine::new("echo + >>\"$0.log\"; sleep 0.05; echo - >>\"$0.log\"; exit 2");
    std::thread::scope(|scope| {
        for _ in 0..24 {
            scope.spawn(|| assert_eq!(machine.names.group_id("any").expect("an answer"), None));
        }
    });
    let log = fs::read_to_string(machine.dir.path().join("getent.log")).expect("it was asked");
    let mut running = 0_usize;
    for line in log.lines() {
        running = if line == "+" { running + 1 } else { running - 1 };
        assert!(running <= getent::PROCESSES_MAX, "{log}");
    }
    assert_eq!(log.lines().count(), 48);
}

#[test]
fn a_full_queue_is_not_a_silent_service() {
    let (queue, allowed) = (getent::Queue::new(), Duration::from_secs(60));
    let deadline = Deadline { at: Instant::now() + allowed, allowed };
    let mut turns: Vec<_> = (0..getent::PROCESSES_MAX).map(|_| queue.turn(deadline)).collect();
    assert!(turns.iter().all(Result::is_ok));
    let over = Deadline { at: Instant::now(), allowed };
    assert!(matches!(queue.turn(over), Err(LookUpError::Busy(_))));
    turns.pop();
    assert!(queue.turn(deadline).is_ok());
}

#[test]
fn hosts_are_asked_of_the_system_and_checked_before() {
    let machine = Machine::new(SERVICE);
    let addresses = |name: &str| machine.names.addresses_of(name);
    let told: Vec<IpAddr> = ["10.0.0.7", "fd00::7"].map(|word| word.parse().expect("an address")).into();
    assert_eq!(addresses("nas").expect("known"), told);
    for name in ["none", "", "-h", "a b", "a/b", &"a".repeat(254)] {
        assert!(matches!(addresses(name), Err(LookUpError::NoHost)), "{name}");
    }
}

#[test]
fn a_machine_without_getent_reads_hosts_by_itself() {
    let mut machine = Machine::new(SERVICE);
    machine.names.getent = Getent::like(vec!["/nonexistent/getent".into()], Duration::from_secs(60));
    fs::write(machine.dir.path().join("hosts"), "10.1.1.1 nas\n").expect("write");
    assert_eq!(machine.names.addresses_of("nas").expect("known").len(), 1);
    assert!(matches!(machine.names.addresses_of("other"), Err(LookUpError::NoGetent)));
    assert!(matches!(machine.names.group_id("far"), Err(LookUpError::NoGetent)));
}

#[test]
fn this_machine_is_asked() {
    assert_eq!(group_id("root").expect("the databases"), Some(0));
    assert_eq!(group_id("no such group").expect("the databases"), None);
    assert!(groups_of(0).expect("the databases").expect("root").groups.contains(&0));
    assert_eq!(groups_of(u32::MAX - 7).expect("the databases"), None);
    assert!(!addresses_of("localhost").expect("an address").is_empty());
    assert_eq!(addresses_of("::1").expect("an address"), ["::1".parse::<IpAddr>().expect("good")]);
    assert!(matches!(addresses_of("no-such-host.invalid"), Err(LookUpError::NoHost)));
}
