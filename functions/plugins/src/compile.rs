//! `compile BYTES`: compiles a component on its input to code on its output, with at most `BYTES`
//! of memory. The function in the same package starts it for each component.

use std::{error::Error, io};

use tidegate_backends::wasm::compile_process::{PROCESSOR_SECONDS, serve};

fn main() -> Result<(), Box<dyn Error>> {
    let bytes = std::env::args().nth(1).ok_or("compile BYTES")?.parse()?;
    Ok(serve(bytes, PROCESSOR_SECONDS, io::stdin().lock(), io::stdout().lock())?)
}
