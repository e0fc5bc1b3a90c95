//! The SDK's bindings: Rust code generated from `wit/plugin.wit`.
//!
//! They are committed, so that an author's first build does not compile a generator of 30 crates.

use std::path::Path;

use anyhow::{Context, Result};
use wit_bindgen_core::{Files, WorldGenerator, wit_parser::Resolve};
use wit_bindgen_rust::{Opts, WithOption};

use crate::Outcome;

/// Interfaces that both worlds import. The second world takes them from the first, so that `Job` is
/// one type.
const SHARED: [&str; 7] = ["types", "clock", "log", "metrics", "random", "state", "jobs"];

/// Generates the bindings of both worlds.
pub fn make(plugins: &Path, outcome: Outcome) -> Result<()> {
    for (world, file, with) in [
        ("throttler-by-column", "throttler.rs", &[][..]),
        ("retry-strategy", "retry.rs", &SHARED[..]),
    ] {
        let made = world_bindings(&plugins.join("wit"), world, with)?;
        outcome.settle(&plugins.join("sdk/src/bindings").join(file), made.as_bytes())?;
    }
    Ok(())
}

fn world_bindings(wit: &Path, world: &str, shared: &[&str]) -> Result<String> {
    let mut resolve = Resolve::default();
    let (package, _) = resolve.push_path(wit)?;
    let id = resolve.select_world(&[package], Some(world))?;
    let module = world.split('-').next().context("a world has a name")?;
    let options = Opts {
        format: true,
        runtime_path: Some("::tidegate_plugin::rt".to_owned()),
        default_bindings_module: Some(format!("::tidegate_plugin::bindings::{module}")),
        export_macro_name: Some(format!("__export_{module}_world")),
        pub_export_macro: true,
        generate_unused_types: true,
        with: shared
            .iter()
            .map(|name| {
                let ours = format!("crate::bindings::throttler::tidegate::plugin::{name}");
                (format!("tidegate:plugin/{name}@0.2.0"), WithOption::Path(ours))
            })
            .collect(),
        additional_derive_attributes: vec!["PartialEq".to_owned()],
        ..Opts::default()
    };
    let mut files = Files::default();
    options.build().generate(&mut resolve, id, &mut files)?;
    let (_, source) = files.iter().next().context("the generator made nothing")?;
    Ok(String::from_utf8(source.to_vec())?)
}
