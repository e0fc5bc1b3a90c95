//! `compile BYTES`: from a component on its input to code on its output, within so much memory. The function beside it starts it for each.

use std::{error::Error, io};

use tidegate_backends::wasm::compile_process::{PROCESSOR_SECONDS, serve};

fn main() -> Result<(), Box<dyn Error>> {
    let bytes = std::env::args().nth(1).ok_or("compile BYTES")?.parse()?;
    Ok(serve(bytes, PROCESSOR_SECONDS, io::stdin().lock(), io::stdout().lock())?)
}
