//! The panic hook that an application has set before its first handler runs. It has a process of its own,
//! because the hook of this package is set once.

use std::{
    env, panic,
    sync::atomic::{AtomicUsize, Ordering},
};

use serde_json::json;
use tidegate_client::{Attempt, Error, Handler, Worker, api, testing::DevServer};

static CALLS: AtomicUsize = AtomicUsize::new(0);

#[tokio::test]
async fn the_hook_of_the_application_is_called() {
    panic::set_hook(Box::new(|_| {
        CALLS.fetch_add(1, Ordering::Relaxed);
    }));
    let program = env::var_os("TIDEGATE_PROGRAM").unwrap_or_else(|| {
        let test = env::current_exe().unwrap();
        test.parent().unwrap().with_file_name("tidegate").into()
    });
    let server = DevServer::start_program(&program).await;
    let fails = async |(): (), _: Attempt| -> Result<(), Error> { panic!("no paper") };
    let mut worker = Worker::new(server.client().clone());
    worker.handle(Handler::new("panics", fails).config(json!({ "max_attempts": 1 }))).unwrap();
    server.apply(&worker).await;
    server.client().enqueue("panics", &()).await.unwrap();
    let runs = server.drain(&worker).await;
    assert_eq!(runs[0].status, api::Status::Failed);
    assert_eq!(CALLS.load(Ordering::Relaxed), 1);
}
