//! Copies between memory that others may be writing concurrently.
//!
//! A plain `memcpy`, `ptr::copy` or slice access tells the compiler that no one else writes; with a guest as
//! the writer that is untrue, and the behaviour undefined. vm-memory uses volatile accesses for a few bytes
//! and falls back on `ptr::copy` for bulk. On x86-64 this module uses inline assembly, which the compiler
//! neither duplicates, splits nor reorders with other memory accesses: each byte is loaded from memory that
//! a concurrent writer stores to, and any value stored there is a valid result. On other processors it uses
//! relaxed atomics: of words where both sides are aligned alike, otherwise of bytes.
//!
//! After a fault in the middle (see `sigbus`) the copy resumes: the string instructions keep their progress
//! in registers. If source and target overlap, which only a hostile peer causes, the target gets some mix of
//! their bytes.
//!
//! x86 keeps the order of stores around a string instruction, so a flag stored after a copy becomes visible
//! after its bytes.

#[cfg(all(target_arch = "x86_64", not(miri)))]
pub(crate) use x86_64::{copy, zero};

#[cfg(any(not(target_arch = "x86_64"), miri))]
pub(crate) use portable::{copy, zero};

/// Size from which the string instructions are faster than a loop of 16-byte moves (measured:
/// `docs/decisions/mem-copies.md`).
#[cfg(all(target_arch = "x86_64", not(miri)))]
const STRING_MIN: usize = 1024;

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod x86_64 {
    use super::STRING_MIN;
    use std::arch::asm;

    /// Copies `len` bytes. Others may be accessing source and target at the same time.
    ///
    /// # Safety
    /// `from` must be readable and `to` writable for `len` bytes, except for faults handled by `sigbus`.
    #[inline]
    pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
        // SAFETY: every arm stays within `len` bytes, guaranteed by the caller.
        unsafe {
            match len {
                0 => {}
                1..4 => {
                    for i in 0..len {
                        move_1(from.add(i), to.add(i));
                    }
                }
                4..8 => ends(from, to, len, 4, move_4),
                8..16 => ends(from, to, len, 8, move_8),
                16..STRING_MIN => blocks(from, to, len),
                _ => string(from, to, len),
            }
        }
    }

    /// Zeroes `len` bytes that others may be accessing.
    ///
    /// # Safety
    /// `to` must be writable for `len` bytes, except for faults handled by `sigbus`.
    pub(crate) unsafe fn zero(to: *mut u8, len: usize) {
        // SAFETY: `rep stosb` writes exactly `len` bytes from `to` up; the ABI keeps the direction flag
        // clear.
        unsafe {
            asm!("rep stosb", inout("rcx") len => _, inout("rdi") to => _, in("al") 0u8,
                 options(nostack, preserves_flags));
        }
    }

    /// Copies the first and the last `unit` bytes: all bytes, if `len` is at most twice `unit`.
    ///
    /// # Safety
    /// The conditions are those of `copy`, and that `len` is at least `unit`.
    #[inline]
    unsafe fn ends(
        from: *const u8,
        to: *mut u8,
        len: usize,
        unit: usize,
        mov: unsafe fn(*const u8, *mut u8),
    ) {
        let last = len - unit;
        // SAFETY: both moves are within `len` bytes.
        unsafe {
            mov(from, to);
            mov(from.add(last), to.add(last));
        }
    }

    /// Copies in blocks of 16 bytes, the last of which may overlap the one before.
    ///
    /// # Safety
    /// The conditions are those of `copy`, and that `len` is at least 16.
    #[inline]
    unsafe fn blocks(from: *const u8, to: *mut u8, len: usize) {
        let last = len - 16;
        let mut at = 0;
        // SAFETY: `at` is at most `len - 16` for every move.
        unsafe {
            while at < last {
                move_16(from.add(at), to.add(at));
                at += 16;
            }
            move_16(from.add(last), to.add(last));
        }
    }

    /// Copies by a string instruction.
    ///
    /// # Safety
    /// The conditions are those of `copy`.
    #[inline]
    unsafe fn string(from: *const u8, to: *mut u8, len: usize) {
        // SAFETY: `rep movsb` moves exactly `len` bytes upwards; the ABI keeps the direction flag clear.
        unsafe {
            asm!("rep movsb", inout("rcx") len => _, inout("rdi") to => _, inout("rsi") from => _,
                 options(nostack, preserves_flags));
        }
    }

    macro_rules! mover {
        ($name:ident, $class:ident, $load:literal, $store:literal) => {
            /// Copies one unit of the named size.
            ///
            /// # Safety
            /// The conditions are those of `copy`, for that size.
            #[inline]
            unsafe fn $name(from: *const u8, to: *mut u8) {
                // SAFETY: one load and one store of that size, which x86 allows at any alignment.
                unsafe {
                    asm!($load, $store, from = in(reg) from, to = in(reg) to, word = out($class) _,
                         options(nostack, preserves_flags));
                }
            }
        };
    }

    mover!(move_1, reg_byte, "mov {word}, [{from}]", "mov [{to}], {word}");
    mover!(move_4, reg, "mov {word:e}, [{from}]", "mov [{to}], {word:e}");
    mover!(move_8, reg, "mov {word}, [{from}]", "mov [{to}], {word}");
    mover!(move_16, xmm_reg, "movups {word}, [{from}]", "movups [{to}], {word}");
}

#[cfg(any(test, miri, not(target_arch = "x86_64")))]
#[cfg_attr(all(target_arch = "x86_64", not(miri)), allow(dead_code, reason = "tested here, used elsewhere"))]
mod portable {
    use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering::Relaxed};

    const WORD: usize = size_of::<usize>();

    /// Copies `len` bytes. Others may be accessing source and target at the same time.
    ///
    /// # Safety
    /// `from` must be readable and `to` writable for `len` bytes, except for faults handled by `sigbus`.
    pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
        let mut at = 0;
        let is_aligned_alike = (from as usize) % WORD == (to as usize) % WORD;
        // SAFETY: every access is within `len` bytes; word accesses occur only where both sides are aligned.
        unsafe {
            while at < len {
                let (f, t) = (from.add(at), to.add(at));
                if is_aligned_alike && (t as usize).is_multiple_of(WORD) && len - at >= WORD {
                    let word = AtomicUsize::from_ptr(f.cast_mut().cast()).load(Relaxed);
                    AtomicUsize::from_ptr(t.cast()).store(word, Relaxed);
                    at += WORD;
                } else {
                    let byte = AtomicU8::from_ptr(f.cast_mut()).load(Relaxed);
                    AtomicU8::from_ptr(t).store(byte, Relaxed);
                    at += 1;
                }
            }
        }
    }

    /// Zeroes `len` bytes that others may be accessing.
    ///
    /// # Safety
    /// `to` must be writable for `len` bytes, except for faults handled by `sigbus`.
    pub(crate) unsafe fn zero(to: *mut u8, len: usize) {
        let mut at = 0;
        // SAFETY: every access is within `len` bytes; word accesses occur only where aligned.
        unsafe {
            while at < len {
                let t = to.add(at);
                if (t as usize).is_multiple_of(WORD) && len - at >= WORD {
                    AtomicUsize::from_ptr(t.cast()).store(0, Relaxed);
                    at += WORD;
                } else {
                    AtomicU8::from_ptr(t).store(0, Relaxed);
                    at += 1;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::portable;

    type Copy = unsafe fn(*const u8, *mut u8, usize);

    /// Tests lengths around each switch of method, at every alignment of both sides, with a guard around the
    /// target.
    fn copies_exactly(copy: Copy) {
        let from: Vec<u8> = (0..2048u32).map(|i| (i * 7 + i / 256) as u8).collect();
        for len in (0..70).chain(500..530).chain(1010..1040) {
            for (lead_from, lead_to) in [(0, 0), (1, 0), (0, 3), (5, 5), (7, 2)] {
                let mut to = vec![0xAA; 2048];
                // SAFETY: both vectors are longer than lead plus length.
                unsafe { copy(from[lead_from..].as_ptr(), to[lead_to..].as_mut_ptr(), len) };
                assert_eq!(to[lead_to..lead_to + len], from[lead_from..lead_from + len], "length {len}");
                assert!(to[..lead_to].iter().chain(&to[lead_to + len..]).all(|byte| *byte == 0xAA));
            }
        }
    }

    #[test]
    fn copy_moves_every_byte_and_no_other() {
        copies_exactly(super::copy);
        copies_exactly(portable::copy);
    }

    #[test]
    fn zero_clears_every_byte_and_no_other() {
        for zero in [super::zero as unsafe fn(*mut u8, usize), portable::zero] {
            for (lead, len) in [(0, 0), (0, 1), (3, 9), (1, 64), (5, 1000)] {
                let mut bytes = vec![0xAA; 1024];
                // SAFETY: the vector is longer than lead plus length.
                unsafe { zero(bytes[lead..].as_mut_ptr(), len) };
                assert!(bytes[lead..lead + len].iter().all(|byte| *byte == 0));
                assert!(bytes[..lead].iter().chain(&bytes[lead + len..]).all(|byte| *byte == 0xAA));
            }
        }
    }
}
