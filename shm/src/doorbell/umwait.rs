//! Polling with the processor at rest: UMONITOR, UMWAIT and TPAUSE of x86's WAITPKG.
//!
//! `is_available` returns `false` where CPUID lacks them. To remove this optimisation, delete the file and
//! its uses.

#[cfg(target_arch = "x86_64")]
pub(super) use x86_64::{is_available, rest};

/// Maximum time at rest, in ticks of the time stamp counter: a fraction of a millisecond. The kernel's own
/// limit is 100,000.
#[cfg(target_arch = "x86_64")]
const REST_TICKS: u64 = 100_000;

#[cfg(target_arch = "x86_64")]
mod x86_64 {
    use super::REST_TICKS;
    use std::arch::asm;
    use std::arch::x86_64::{__cpuid, __cpuid_count, _rdtsc};
    use std::sync::OnceLock;

    /// Returns `true` if the processor has WAITPKG: CPUID leaf 7, subleaf 0, ECX bit 5.
    pub(in super::super) fn is_available() -> bool {
        static AVAILABLE: OnceLock<bool> = OnceLock::new();
        *AVAILABLE.get_or_init(|| __cpuid(0).eax >= 7 && __cpuid_count(7, 0).ecx & (1 << 5) != 0)
    }

    /// Rests until `line` is written, unless `ready` returns `true` once monitoring has started, at most for
    /// [`REST_TICKS`]. Without a line it rests for a hundredth of that. Does nothing on processors without
    /// WAITPKG.
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
                // Stores before UMONITOR are not noticed.
                if !ready() {
                    // SAFETY: as above.
                    unsafe { umwait(now.wrapping_add(REST_TICKS)) };
                }
            }
            // SAFETY: as above.
            None => unsafe { tpause(now.wrapping_add(REST_TICKS / 100)) },
        }
    }

    /// Starts monitoring the line at this address.
    ///
    /// # Safety
    /// The processor must have WAITPKG. The address is monitored, not dereferenced; at worst the wait is
    /// short.
    unsafe fn umonitor(line: *const u8) {
        // SAFETY: guaranteed by the caller; the instruction changes no register and no memory.
        unsafe { asm!("umonitor {}", in(reg) line, options(nostack, preserves_flags)) };
    }

    /// Rests until the monitored line is written or the deadline.
    ///
    /// # Safety
    /// The processor must have WAITPKG.
    unsafe fn umwait(until: u64) {
        // SAFETY: guaranteed by the caller; the instruction changes the flags only. State 1 (C0.1) has the
        // lower exit latency.
        unsafe {
            asm!("umwait {:e}", in(reg) 1u32, in("eax") until as u32, in("edx") (until >> 32) as u32, options(nostack));
        }
    }

    /// Rests until the deadline.
    ///
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
    fn umwait_rest_ends_with_or_without_waitpkg() {
        let line = 0u64;
        super::rest(Some(std::ptr::from_ref(&line).cast()), || false);
        super::rest(None, || false);
    }
}
