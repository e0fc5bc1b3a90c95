//! How a function's program is linked, where it is packaged: it lies where it is linked for, and carries no tables for unwinding.
//!
//! The one thing to know: both are a tenth of what such a program weighs. It is started from nothing again and again, its addresses need
//! no mending then, and nobody unwinds it (`profile.lambda` in the workspace's `Cargo.toml`).

#[allow(clippy::disallowed_methods, reason = "cargo says by the environment what it builds")]
fn main() {
    println!("cargo::rerun-if-changed=../link.rs");
    println!("cargo::rerun-if-changed=../no-unwinding.ld");
    let says = |name: &str, value: &str| std::env::var(name).as_deref() == Ok(value);
    if says("OPT_LEVEL", "z") && says("CARGO_CFG_TARGET_OS", "linux") {
        println!("cargo::rustc-link-arg-bins=-no-pie");
        println!("cargo::rustc-link-arg-bins=-Wl,--no-eh-frame-hdr");
        println!(
            "cargo::rustc-link-arg-bins=-Wl,-T,{}/../no-unwinding.ld",
            env!("CARGO_MANIFEST_DIR")
        );
    }
}
