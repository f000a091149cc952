//! The processor's time stamp counter, for where querying the kernel's clock is expensive, as in a User Mode
//! Linux guest.

/// Returns ticks since an arbitrary moment. Their rate is constant on current processors, but unknown; `None`
/// without a counter readable by programs (processors other than x86-64).
#[inline]
#[must_use]
pub fn now() -> Option<u64> {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: the instruction reads a counter into registers, and every x86-64 processor has it.
        Some(unsafe { std::arch::x86_64::_rdtsc() })
    }
    #[cfg(not(target_arch = "x86_64"))]
    None
}

#[cfg(test)]
mod tests {
    #[test]
    fn time_goes_on() {
        if let Some(before) = super::now() {
            std::thread::sleep(std::time::Duration::from_millis(1));
            assert!(super::now() > Some(before));
        }
    }
}
