//! `plugins`: the HTTP API with a compiler, for pushing plugins. Only this function may write the
//! code that all functions run.
//!
//! Before its first answer it recompiles the plugins of earlier releases for this one, so one
//! request after an upgrade is enough.

#[path = "../../gateway.rs"]
mod gateway;

use std::sync::Arc;

use lambda_http::tower::ServiceExt as _;
use tidegate_backends::wasm::{compile::Compiler, compile_process::Process};
use tidegate_server::lambda::{self, CloudSettings};
use tokio::sync::OnceCell;

/// Memory in MiB that the function keeps for itself while the compiler runs.
const RESERVED_MIB: u64 = 512;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), lambda_http::Error> {
    let settings = CloudSettings::from_vars(std::env::vars())?;
    let metrics = lambda::observe(&settings);
    let server = lambda::open(&settings).await?.compiler(compiler()?).start().await?;
    let routes = lambda::router(server.clone(), (&settings).into(), metrics).await;
    let compiled = Arc::new(OnceCell::new());
    let after_compiling = move |answer| {
        let (server, compiled) = (server.clone(), Arc::clone(&compiled));
        async move {
            // The request is answered even so: it may be the one that asks what is wrong.
            if let Err(error) = compiled.get_or_try_init(|| server.recompile()).await {
                tracing::error!(%error, "cannot read the plugins; the next request tries again");
            }
            answer.await
        }
    };
    let service = routes
        .map_request(gateway::from_gateway)
        .map_future(after_compiling)
        .and_then(gateway::to_gateway);
    lambda_http::run(service).await
}

/// The program `compile` of this package, with the memory that this function does not reserve.
#[allow(clippy::disallowed_methods, reason = "Lambda sets its size as a variable")]
fn compiler() -> Result<Compiler, lambda_http::Error> {
    let program = std::env::current_exe()?.with_file_name("compile");
    let size = std::env::var("AWS_LAMBDA_FUNCTION_MEMORY_SIZE")?.parse::<u64>()?;
    let bytes = size.saturating_sub(RESERVED_MIB).max(RESERVED_MIB) << 20;
    Ok(Compiler::Process(Process::new(program, [bytes.to_string()])))
}
