//! The client of the API, and how its errors read on a command line.

pub use tidegate_api::{
    Problem,
    client::{ApiResponse, Client, Error, Request, base_url},
};

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;
    use crate::cli::{context::ExitCode, testing::FakeServer};

    #[tokio::test]
    async fn a_problem_is_one_line_with_its_code() {
        let server = FakeServer::answering(|_| {
            let problem = json!({
                "type": "about:blank", "title": "Conflict", "status": 409,
                "detail": "the job has ended", "code": "ended",
            });
            (409, problem)
        })
        .await;
        let err = server.client().get(&["jobs", "a"]).send().await.unwrap_err();
        assert_eq!(err.to_string(), "Conflict: the job has ended (ended)");
        assert_eq!(ExitCode::of(&err.into()), ExitCode::Refused);
    }

    #[tokio::test]
    async fn paths_and_queries_are_escaped_and_the_token_is_shown() {
        let server = FakeServer::answering(|_| (200, json!({}))).await;
        server.client().get(&["jobs", "a/b c"]).query("attribute.x", "1&2").send().await.unwrap();
        let seen = server.seen();
        assert_eq!(seen[0].path, "/v1/jobs/a%2Fb%20c?attribute.x=1%262");
        assert_eq!(seen[0].bearer.as_deref(), Some("secret"));
    }

    #[tokio::test]
    async fn an_answer_that_is_not_tidegates_says_so() {
        let server = FakeServer::answering(|_| (502, json!("<html>"))).await;
        let err = server.client().get(&["jobs"]).send().await.unwrap_err();
        assert!(
            err.to_string().starts_with("Bad Gateway: the answer is not a problem document"),
            "{err}"
        );
        assert!(err.passes());
    }

    #[tokio::test]
    async fn a_missing_server_says_what_to_do() {
        // Bound and not listened on, so that no other program can listen there.
        let closed = tokio::net::TcpSocket::new_v4().unwrap();
        closed.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let url = base_url(&closed.local_addr().unwrap().to_string()).unwrap();
        let err = Client::new(url, None).unwrap().get(&["jobs"]).send().await.unwrap_err();
        assert!(
            err.to_string().contains("refused") && err.to_string().contains("tidegate serve"),
            "{err}"
        );
        assert_eq!(ExitCode::of(&err.into()), ExitCode::Unreachable);
    }

    #[tokio::test]
    async fn an_answer_over_the_bound_is_not_read() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = base_url(&listener.local_addr().unwrap().to_string()).unwrap();
        tokio::spawn(async move {
            let (mut connection, _) = listener.accept().await.unwrap();
            let _ = connection.read(&mut [0; 1024]).await.unwrap();
            let head = b"HTTP/1.1 200 OK\r\ncontent-length: 1073741825\r\n\r\n";
            connection.write_all(head).await.unwrap();
            // It stays open: the client must not wait for the body.
            std::future::pending::<()>().await;
        });
        let err = Client::new(url, None).unwrap().get(&["jobs"]).send().await.unwrap_err();
        assert!(matches!(err, Error::TooLarge { .. }), "{err}");
    }

    #[test]
    fn a_server_may_be_named_without_its_scheme() {
        assert_eq!(base_url("localhost:80/q").unwrap().as_str(), "http://localhost/q");
        assert!(base_url("ftp://x").is_err() && base_url("http://").is_err());
    }
}
