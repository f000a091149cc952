//! Validation of CPU descriptions in images: a model, and features switched on or off. Other properties of
//! QEMU's CPUs affect the host (`memory`, `start-powered-off`, `host-cache-info`), and images may not set
//! them.

/// CPU properties that are no features, but do not affect the host either.
const PROPERTIES: &str = "check enforce host-phys-bits kvm l3-cache migratable pmu";

/// Features of x86 CPUs, as named by QEMU 7.2 to 10.0, without those that reserve host resources (SGX).
const FEATURES: &str = "3dnow 3dnowext 3dnowprefetch abm ace2 ace2-en acpi adx aes amd-no-ssb amd-psfd amd-ssbd amd-stibp amx-bf16 amx-complex amx-fp16
    amx-int8 amx-tile apic arat arch-capabilities arch-lbr auto-ibrs avic avx avx-ifma avx-ne-convert avx-vnni avx-vnni-int16 avx-vnni-int8 avx10 avx2
    avx512-4fmaps avx512-4vnniw avx512-bf16 avx512-fp16 avx512-vp2intersect avx512-vpopcntdq avx512bitalg avx512bw avx512cd avx512dq avx512er avx512f
    avx512ifma avx512pf avx512vbmi avx512vbmi2 avx512vl avx512vnni bhi-ctrl bhi-no bmi1 bmi2 bus-lock-detect cid cldemote clflush clflushopt clwb clzero cmov
    cmp-legacy cmpccxadd core-capability cr8legacy cx16 cx8 dca ddpd-u de decodeassists ds ds-cpl dtes64 erms est extapic f16c fb-clear fbsdp-no ffxsr
    flush-l1d flushbyasid fma fma4 fpu fred fsgsbase fsrc fsrm fsrs full-width-write fxsr fxsr-opt fzrm gds-no gfni hle hreset ht hypervisor ia64 ibpb
    ibpb-brtype ibrs ibrs-all ibs intel-psfd intel-pt intel-pt-lip invpcid invtsc ipred-ctrl its-no kvm-asyncpf kvm-asyncpf-int kvm-asyncpf-vmexit
    kvm-hint-dedicated kvm-mmu kvm-msi-ext-dest-id kvm-nopiodelay kvm-poll-control kvm-pv-eoi kvm-pv-ipi kvm-pv-sched-yield kvm-pv-tlb-flush kvm-pv-unhalt
    kvm-steal-time kvmclock kvmclock-stable-bit la57 lahf-lm lam lbrv lfence-always-serializing lkgs lm lwp mca mcdt-no mce md-clear mds-no misalignsse mmx
    mmxext monitor movbe movdir64b movdiri mpx msr mtrr no-nested-data-bp nodeid-msr npt nrip-save null-sel-clr-base nx osvw overflow-recov pae pat
    pause-filter pbe pbrsb-no pcid pclmuldq pclmulqdq pcommit pdcm pdpe1gb perfctr-core perfctr-nb perfmon-v2 pfthreshold pge phe phe-en pks pku pmm pmm-en pn
    pni popcnt prefetchiti pschange-mc-no psdp-no pse pse36 rdctl-no rdpid rdrand rdseed rdtscp rfds-clear rfds-no rrsba-ctrl rsba rtm sbdr-ssdp-no sbpb sep
    serialize sha-ni sha512 skinit skip-l1dfl-vmentry sm3 sm4 smap smep smx spec-ctrl split-lock-detect ss ssb-no ssbd sse sse2 sse3 sse4-1 sse4-2 sse4.1
    sse4.2 sse4a ssse3 stibp stibp-always-on succor svm svm-lock svme-addr-chk syscall taa-no tbm tce tm tm2 topoext tsa-l1-no tsa-sq-no tsc tsc-adjust
    tsc-deadline tsc-scale tsx-ctrl tsx-ldtrk umip v-vmsave-vmload vaes verw-clear vgif virt-ssbd vmcb-clean vme vmx vnmi vpclmulqdq waitpkg wbnoinvd wdt
    wrmsrns x2apic xcrypt xcrypt-en xd xfd xgetbv1 xop xsave xsavec xsaveerptr xsaveopt xsaves xstore xstore-en xtpr zero-fcs-fds
    hv-avic hv-crash hv-evmcs hv-frequencies hv-ipi hv-reenlightenment hv-relaxed hv-reset hv-runtime hv-stimer hv-stimer-direct hv-synic hv-time hv-tlbflush
    hv-tlbflush-direct hv-tlbflush-ext hv-vapic hv-vpindex";

/// Prefix of the names of nested-virtualisation features, of which there are about a hundred.
const NESTED: &str = "vmx-";

/// Returns the first part of a CPU description that is neither a model nor a feature, or `None` if it has
/// none.
pub(crate) fn unknown_part(cpu: &str) -> Option<&str> {
    let mut parts = cpu.split(',');
    let is_name = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let model = parts.next().filter(|model| model.is_empty() || !model.chars().all(is_name));
    model.or_else(|| parts.find(|part| !is_feature(part)))
}

fn is_feature(part: &str) -> bool {
    let name = match part.split_once('=') {
        Some((name, "on" | "off")) => name,
        Some(_) => return false,
        None => part.strip_prefix(['+', '-']).unwrap_or(part),
    };
    let name = name.replace('_', "-");
    let is_nested = name.strip_prefix(NESTED).is_some_and(|rest| {
        !rest.is_empty() && rest.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
    });
    is_nested
        || [PROPERTIES, FEATURES].iter().any(|names| names.split_whitespace().any(|listed| listed == name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_description_allows_only_model_and_features() {
        for cpu in [
            "max",
            "max,-cx16",
            "EPYC-v4",
            "Icelake-Server,+vmx,vmx-ept=off,avx512f=on",
            "host,sse4_1=on,hv-time",
            "host,pmu=off,l3-cache=on,host-phys-bits=on,migratable=off,enforce,+check,kvm=off",
        ] {
            assert_eq!(unknown_part(cpu), None, "{cpu}");
        }
        for (cpu, unknown) in [
            ("", ""),
            ("max,", ""),
            ("max cx16", "max cx16"),
            ("max,memory=x", "memory=x"),
            ("max,+realized", "+realized"),
            ("max,host-cache-info=on", "host-cache-info=on"),
            ("max,sgx=on", "sgx=on"),
            ("max,cx16=1", "cx16=1"),
            ("max,cx16,start-powered-off=on", "start-powered-off=on"),
            ("max,vmx-=on", "vmx-=on"),
            ("max,x-force-features=on", "x-force-features=on"),
            ("max,level=2", "level=2"),
            ("max,pmu=2", "pmu=2"),
        ] {
            assert_eq!(unknown_part(cpu), Some(unknown), "{cpu}");
        }
    }
}
