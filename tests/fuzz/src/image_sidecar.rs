//! Arbitrary bytes as the sidecar of an image, as they are and with a valid digest: a decoded sidecar encodes
//! to the same bytes, and refers to nothing outside of its files.

use tombolo_wire_image::{HEAD_BYTES_MAX, Sidecar, head_bytes, sealed};

/// Runs the target.
pub fn run(bytes: &[u8]) {
    if let Some(prefix) = bytes.first_chunk()
        && let Ok(len) = head_bytes(prefix)
    {
        assert!(len <= HEAD_BYTES_MAX);
    }
    let _ = Sidecar::decode(bytes);
    let Ok(head) = sealed(bytes) else { return };
    let Ok(sidecar) = Sidecar::decode(&head) else { return };
    for file in &sidecar.files {
        assert!(file.zeros.count() <= file.blocks() && file.zero_bytes() <= file.size);
        assert!(file.zeros.runs().all(|run| run.end <= file.blocks()));
        assert!(sidecar.file(&file.name) == Some(file));
    }
    assert!(sidecar.trace.iter().all(|step| (step.file as usize) < sidecar.files.len()));
    assert_eq!(sidecar.encode(), Ok(head));
}
