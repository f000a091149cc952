//! Names the library as programs look for it at run time: its interface has number 0.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libtombolo.so.0");
    println!("cargo:rerun-if-changed=build.rs");
}
