//! Runs the real binary, packaged with the compiler, against a runtime API that sends requests of a
//! function URL.

#![allow(clippy::unwrap_used, reason = "a test ends where it cannot go on")]
#![cfg(feature = "compiler")]

use std::{
    fs,
    path::{Path, PathBuf},
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::{Value, json};
use tidegate_server::lambda::testkit::{Function, request};

const TOKEN: &str = "tg_first_secret";

/// The function on `table`, unpacked in its own folder, without the compiler if `compiler` is
/// `None`.
async fn start(folder: &str, compiler: Option<&str>, table: &str) -> Function {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(folder);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    fs::hard_link(env!("CARGO_BIN_EXE_tidegate-plugins"), folder.join("bootstrap")).unwrap();
    if let Some(program) = compiler {
        fs::hard_link(program, folder.join("compile")).unwrap();
    }
    // The SHA-256 of `secret`, in base64.
    let first = ("TIDEGATE_ADMIN_TOKEN", "first:K7gNU3sdo+OL0wNhqoVWhr3g6s1xYv72ol/pe/Unols=");
    Function::start(&folder.join("bootstrap"), &[first, ("TIDEGATE_TABLE", table)]).await
}

async fn push(function: &Function, wasm: &[u8]) -> (u64, Value) {
    let mut event = request("PUT", "/v1/plugins/p", Some(TOKEN), None);
    event["headers"]["content-type"] = json!("application/wasm");
    (event["body"], event["isBase64Encoded"]) = (json!(BASE64_STANDARD.encode(wasm)), json!(true));
    let answer = function.call(event).await.unwrap();
    let text = answer["body"].as_str().unwrap();
    let bytes = if answer["isBase64Encoded"] == true {
        BASE64_STANDARD.decode(text).unwrap()
    } else {
        text.into()
    };
    (answer["statusCode"].as_u64().unwrap(), serde_json::from_slice(&bytes).unwrap())
}

fn region_share() -> Vec<u8> {
    fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../plugins/dist/region-share.wasm"))
        .unwrap()
}

#[tokio::test]
async fn the_packaged_program_compiles_a_component_and_refuses_others() {
    let function = start("with", Some(env!("CARGO_BIN_EXE_tidegate-compile")), "memory:").await;
    let (status, answer) = push(&function, &region_share()).await;
    assert_eq!((status, &answer["roles"]), (201, &json!(["throttler"])), "{answer}");
    let (status, answer) = push(&function, b"hello").await;
    assert_eq!((status, &answer["code"]), (400, &json!("invalid_plugin")), "{answer}");
}

#[tokio::test]
async fn without_its_compiler_a_push_is_refused_with_the_reason() {
    let function = start("without", None, "memory:").await;
    let (status, answer) = push(&function, &region_share()).await;
    assert_eq!((status, &answer["code"]), (503, &json!("unavailable")), "{answer}");
    assert!(
        answer["detail"].as_str().unwrap().contains("the compiler could not be run"),
        "{answer}"
    );
}

#[tokio::test]
async fn the_doctor_answers_even_if_the_plugins_cannot_be_read() {
    let function = start("lost", None, "gone").await;
    let answer = function.call(request("GET", "/v1/doctor", Some(TOKEN), None)).await.unwrap();
    let body = answer["body"].as_str().unwrap();
    assert!(answer["statusCode"] == 200 && body.contains("\"table\""), "{answer}");
}
