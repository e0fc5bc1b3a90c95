//! `plugins`: the HTTP API with a compiler beside it, for those who push plugins. The only function that may change what all of them run.
//!
//! Before its first answer it compiles for this release what an earlier one compiled: one call of it after an upgrade is enough.

#[path = "../../gateway.rs"]
mod gateway;

use std::sync::Arc;

use lambda_http::tower::ServiceExt as _;
use tidegate_backends::wasm::{compile::Compiler, compile_process::Process};
use tidegate_server::lambda::{self, CloudSettings};
use tokio::sync::OnceCell;

/// What of the function's memory is left to the function while it compiles, in MiB.
const OWN: u64 = 512;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), lambda_http::Error> {
    let settings = CloudSettings::from_vars(std::env::vars())?;
    let metrics = lambda::observe(&settings);
    let server = lambda::open(&settings).await?.compiler(compiler()?).start().await?;
    let routes =
        lambda::router(server.clone(), settings.max_data_bytes, settings.first_token, metrics)
            .await;
    let compiled = Arc::new(OnceCell::new());
    let after_compiling = move |answer| {
        let (server, compiled) = (server.clone(), Arc::clone(&compiled));
        async move {
            // Whoever asks what is wrong is answered all the same.
            if let Err(error) = compiled.get_or_try_init(|| server.recompile()).await {
                tracing::error!(%error, "which plugins there are cannot be read; the next request looks again");
            }
            answer.await
        }
    };
    lambda_http::run(routes.map_request(gateway::from_gateway).map_future(after_compiling)).await
}

/// The program `compile` beside this one, with the memory that this function has.
#[allow(clippy::disallowed_methods, reason = "Lambda says by the environment what it gives")]
fn compiler() -> Result<Compiler, lambda_http::Error> {
    let program = std::env::current_exe()?.with_file_name("compile");
    let size = std::env::var("AWS_LAMBDA_FUNCTION_MEMORY_SIZE")?.parse::<u64>()?;
    let bytes = size.saturating_sub(OWN).max(OWN) << 20;
    Ok(Compiler::Process(Process::new(program, [bytes.to_string()])))
}
