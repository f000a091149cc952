//! Looking at a line with the processor at rest: UMONITOR, UMWAIT and TPAUSE of x86's WAITPKG.
//!
//! `is_available` says false where CPUID does not name them. To do without, delete this file and what the
//! compiler misses then.

#[cfg(target_arch = "x86_64")]
pub(super) use x86_64::{is_available, rest};

/// Ticks of the time stamp counter to rest for at most: a fraction of a millisecond. The kernel's own limit
/// is 100,000.
#[cfg(target_arch = "x86_64")]
const REST_TICKS: u64 = 100_000;

#[cfg(target_arch = "x86_64")]
mod x86_64 {
    use super::REST_TICKS;
    use std::arch::asm;
    use std::arch::x86_64::{__cpuid, __cpuid_count, _rdtsc};
    use std::sync::OnceLock;

    /// Whether the processor has WAITPKG: CPUID leaf 7, subleaf 0, ECX bit 5.
    pub(in super::super) fn is_available() -> bool {
        static AVAILABLE: OnceLock<bool> = OnceLock::new();
        *AVAILABLE.get_or_init(|| __cpuid(0).eax >= 7 && __cpuid_count(7, 0).ecx & (1 << 5) != 0)
    }

    /// Rests until `line` may have been written since before `ready` was asked, or some time has passed.
    /// Without a line it just rests, for a shorter time. Does nothing where the instructions are not
    /// available.
    pub(in super::super) fn rest(line: Option<*const u8>, ready: impl FnOnce() -> bool) {
        if !is_available() {
            return;
        }
        // SAFETY: only reads a counter.
        let now = unsafe { _rdtsc() };
        match line {
            Some(line) => {
                // SAFETY: the processor has the instruction.
                unsafe { umonitor(line) };
                // What was written before the line was watched is not noticed.
                if !ready() {
                    // SAFETY: as above.
                    unsafe { umwait(now.wrapping_add(REST_TICKS)) };
                }
            }
            // SAFETY: as above.
            None => unsafe { tpause(now.wrapping_add(REST_TICKS / 100)) },
        }
    }

    /// # Safety
    /// The processor must have WAITPKG. The address is watched, not followed; at worst the wait is short.
    unsafe fn umonitor(line: *const u8) {
        // SAFETY: as the caller says; the instruction changes no register and no memory.
        unsafe { asm!("umonitor {}", in(reg) line, options(nostack, preserves_flags)) };
    }

    /// # Safety
    /// The processor must have WAITPKG.
    unsafe fn umwait(until: u64) {
        // SAFETY: as the caller says; it changes the flags only. State 1 (C0.1) is left sooner.
        unsafe {
            asm!("umwait {:e}", in(reg) 1u32, in("eax") until as u32, in("edx") (until >> 32) as u32, options(nostack));
        }
    }

    /// # Safety
    /// The processor must have WAITPKG.
    unsafe fn tpause(until: u64) {
        // SAFETY: as for umwait.
        unsafe {
            asm!("tpause {:e}", in(reg) 1u32, in("eax") until as u32, in("edx") (until >> 32) as u32, options(nostack));
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) fn is_available() -> bool {
    false
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) fn rest(_line: Option<*const u8>, _ready: impl FnOnce() -> bool) {}

#[cfg(test)]
mod tests {
    #[test]
    fn a_rest_ends_whether_or_not_the_processor_can() {
        let line = 0u64;
        super::rest(Some(std::ptr::from_ref(&line).cast()), || false);
        super::rest(None, || false);
    }
}
