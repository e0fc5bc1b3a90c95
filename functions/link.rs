//! Linker arguments of the packaged functions: fixed addresses, and no unwind tables.
//!
//! Relocations and unwind tables are a tenth of such a program. A function starts often, and fixed
//! addresses need no relocation. Nothing unwinds it: `profile.lambda` in the workspace's
//! `Cargo.toml` aborts on a panic.

#[allow(clippy::disallowed_methods, reason = "cargo passes its settings as environment variables")]
fn main() {
    println!("cargo::rerun-if-changed=../link.rs");
    println!("cargo::rerun-if-changed=../no-unwinding.ld");
    let is_set = |name: &str, value: &str| std::env::var(name).as_deref() == Ok(value);
    if is_set("OPT_LEVEL", "z") && is_set("CARGO_CFG_TARGET_OS", "linux") {
        println!("cargo::rustc-link-arg-bins=-no-pie");
        println!("cargo::rustc-link-arg-bins=-Wl,--no-eh-frame-hdr");
        println!(
            "cargo::rustc-link-arg-bins=-Wl,-T,{}/../no-unwinding.ld",
            env!("CARGO_MANIFEST_DIR")
        );
    }
}
