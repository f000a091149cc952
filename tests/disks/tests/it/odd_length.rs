//! A server whose disk has a fractional number of sectors, as nbdkit's may, or claims more than exists.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex};
use std::thread;

use tombolo_back_nbd_client::{Address, ConnectError, NbdDisk};
use tombolo_core::block::{BlockDevice, Range, Zeroing};
use tombolo_core::{Error, Stability};

use crate::common::{cx, read, write};

const READ: u16 = 0;
const WRITE: u16 = 1;
const FLUSH: u16 = 3;

/// Serves these bytes to one client as a disk of `size_bytes`, without structured replies and with READ,
/// WRITE and FLUSH only.
fn serve(socket: &UnixListener, size_bytes: u64, bytes: &Mutex<Vec<u8>>) -> std::io::Result<()> {
    let (mut client, _) = socket.accept()?;
    client.write_all(b"NBDMAGICIHAVEOPT\0\x03")?;
    taken::<4>(&mut client)?;
    loop {
        let head = taken::<16>(&mut client)?;
        let (code, len) = (number(&head[8..12]), number(&head[12..]));
        client.read_exact(&mut vec![0; len as usize])?;
        let reply = |kind: u32, data: &[u8]| {
            let head =
                [0x0003_e889_0455_65a9_u64.to_be_bytes().to_vec(), (code as u32).to_be_bytes().to_vec()];
            let tail = [&kind.to_be_bytes()[..], &(data.len() as u32).to_be_bytes(), data].concat();
            [head.concat(), tail].concat()
        };
        if code != 7 {
            client.write_all(&reply(0x8000_0001, &[]))?;
            continue;
        }
        // HAS_FLAGS and SEND_FLUSH; minimum block size of one byte.
        let export = [&[0, 0][..], &size_bytes.to_be_bytes(), &[0, 5]].concat();
        let sizes =
            [&[0, 3][..], &1_u32.to_be_bytes(), &4096_u32.to_be_bytes(), &(1_u32 << 25).to_be_bytes()];
        client.write_all(&[reply(3, &export), reply(3, &sizes.concat()), reply(1, &[])].concat())?;
        break;
    }
    loop {
        let head = taken::<28>(&mut client)?;
        let (kind, at, len) = (number(&head[6..8]) as u16, number(&head[16..24]), number(&head[24..]));
        let mut data = vec![0; if kind == WRITE { len as usize } else { 0 }];
        client.read_exact(&mut data)?;
        let mut bytes = bytes.lock().unwrap();
        let place = bytes.get_mut(at as usize..(at + len) as usize);
        let (status, answer) = match (kind, place) {
            (READ, Some(place)) => (0, place.to_vec()),
            (WRITE, Some(place)) => {
                place.copy_from_slice(&data);
                (0, Vec::new())
            }
            (FLUSH, _) => (0, Vec::new()),
            _ => (22_u32, Vec::new()),
        };
        let head = [&0x6744_6698_u32.to_be_bytes()[..], &status.to_be_bytes(), &head[8..16]];
        client.write_all(&[head.concat(), answer].concat())?;
    }
}

fn taken<const N: usize>(client: &mut UnixStream) -> std::io::Result<[u8; N]> {
    let mut bytes = [0; N];
    client.read_exact(&mut bytes).map(|()| bytes)
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

fn connect(size_bytes: u64, bytes: &Arc<Mutex<Vec<u8>>>) -> Result<Arc<NbdDisk>, ConnectError> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let (socket, bytes) = (UnixListener::bind(&path).unwrap(), bytes.clone());
    // Ends with its client.
    thread::spawn(move || serve(&socket, size_bytes, &bytes));
    NbdDisk::connect(Address::Unix(path), None, "disk")
}

#[test]
fn servers_disk_with_fractional_sector_is_padded() {
    let whole = [vec![1; 4096], b"TAIL".to_vec()].concat();
    let bytes = Arc::new(Mutex::new(whole.clone()));
    let disk = connect(4100, &bytes).expect("connected");
    assert_eq!(disk.geometry().size_bytes, 4608);
    let end = [b"TAIL".to_vec(), vec![0; 508]].concat();
    assert_eq!(read(&*disk, 4096, 512).unwrap(), end);
    assert_eq!(read(&*disk, 0, 4608).unwrap(), [vec![1; 4096], end].concat());
    let all = disk.extents(&cx(), Range { offset: 0, len_bytes: 4608 }, 10).wait().unwrap();
    assert_eq!(all.as_slice().iter().map(|extent| extent.len_bytes).sum::<u64>(), 4608);

    write(&*disk, 4096, Stability::DataSync, &[b"tail".to_vec(), vec![0; 508]].concat()).unwrap();
    assert_eq!(bytes.lock().unwrap()[4096..], *b"tail");
    let lost = write(&*disk, 4096, Stability::DataSync, &[7; 512]);
    assert!(matches!(lost, Err(Error::NoSpace)), "{lost:?}: beyond the server's disk");
    let last = Range { offset: 4096, len_bytes: 512 };
    disk.write_zeroes(&cx(), last, Zeroing::default()).wait().unwrap();
    disk.discard(&cx(), last).wait().unwrap();
    assert_eq!(bytes.lock().unwrap()[4096..], [0; 4]);
    assert_eq!(read(&*disk, 4096, 512).unwrap(), [0; 512]);
}

#[test]
fn server_that_claims_an_endless_disk_is_refused() {
    for size_bytes in [(1 << 55) + 1, 1 << 63, u64::MAX] {
        let refused = connect(size_bytes, &Arc::default());
        assert!(matches!(refused, Err(ConnectError::Size(said)) if said == size_bytes));
    }
    connect(1 << 55, &Arc::default()).expect("long, but possible");
}
