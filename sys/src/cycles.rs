//! The processor's own clock: what is left where asking the kernel for the time is dear, as in a User Mode
//! Linux guest.

/// Ticks since some moment. They go at one rate on today's processors, which is not known beforehand; `None`
/// where programs have no such clock (other processors than x86-64).
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
