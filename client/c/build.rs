//! Sets the soname by which programs find the library at run time: interface number 0.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libtombolo.so.0");
    println!("cargo:rerun-if-changed=build.rs");
}
