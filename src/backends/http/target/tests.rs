//! Each worker is a loopback listener that sends literal bytes.

use std::net::{IpAddr, Ipv4Addr};

use bytes::Bytes;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpSocket, TcpStream},
    sync::oneshot,
    task::JoinHandle,
};

use super::*;

/// A listener that reads one request, answers it with `answer`, and closes the connection. Returns
/// its address, and a task that returns the request.
async fn worker(answer: impl Into<Vec<u8>>) -> (SocketAddr, JoinHandle<String>) {
    let answer = answer.into();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let seen = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let request = read_request(&mut stream).await;
        // The caller may close the connection of a too long answer.
        let _ = stream.write_all(&answer).await;
        request
    });
    (address, seen)
}

/// Reads one request whose body is `{"n":1}`.
async fn read_request(stream: &mut TcpStream) -> String {
    let mut request = Vec::new();
    while !request.ends_with(br#"{"n":1}"#) {
        assert_ne!(stream.read_buf(&mut request).await.unwrap(), 0, "the request ended early");
    }
    String::from_utf8(request).unwrap()
}

fn request(url: impl Into<String>) -> Request {
    Request {
        url: url.into(),
        headers: vec![
            ("content-type".into(), "application/json".into()),
            ("webhook-id".into(), "j1".into()),
        ],
        basic_auth: None,
        body: Bytes::from_static(br#"{"n":1}"#),
        timeout: Duration::from_secs(20),
        most_bytes: MAX_BODY_BYTES,
    }
}

/// The maximum body here, more than one read returns.
const MAX_BODY_BYTES: usize = 300_000;

async fn call(url: impl Into<String>) -> Result<Response, TargetError> {
    HttpTarget::new(Guard::On).unwrap().call(request(url)).await
}

/// Resolves every name to the same addresses.
struct Fixed(Vec<IpAddr>);

impl Resolve for Fixed {
    fn resolve(&self, _: Name) -> Resolving {
        let found: Vec<SocketAddr> = self.0.iter().map(|ip| SocketAddr::new(*ip, 0)).collect();
        Box::pin(async move { Ok(Box::new(found.into_iter()) as Addrs) })
    }
}

const METADATA: IpAddr = IpAddr::V4(Ipv4Addr::new(169, 254, 169, 254));

#[tokio::test]
async fn a_call_sends_headers_and_body_and_returns_the_answer() {
    let (address, seen) = worker(concat!(
        "HTTP/1.1 503 Busy\r\nContent-Type: text/plain\r\nRetry-After: 7\r\nX-Other: no\r\n",
        "Content-Length: 4\r\n\r\nbusy"
    ))
    .await;
    let target = HttpTarget::new(Guard::On).unwrap();
    let asked = Request {
        basic_auth: Some(("ann".into(), "secret".into())),
        ..request(format!("http://{address}/work?x=1"))
    };
    let answer = target.call(asked).await.unwrap();
    assert_eq!((answer.status, &answer.body[..]), (503, &b"busy"[..]));
    assert_eq!(
        answer.headers,
        [("content-type".into(), "text/plain".into()), ("retry-after".into(), "7".into())]
    );
    let seen = seen.await.unwrap();
    for part in [
        "POST /work?x=1 HTTP/1.1\r\n",
        "webhook-id: j1\r\n",
        "authorization: Basic YW5uOnNlY3JldA==\r\n",
        "content-length: 7\r\n",
    ] {
        assert!(seen.contains(part), "{seen}");
    }
}

#[tokio::test]
async fn a_refused_connection_is_not_connected() {
    // Bound and not listened on, so that no other program can listen there.
    let closed = TcpSocket::new_v4().unwrap();
    closed.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = closed.local_addr().unwrap();
    let Err(TargetError::NotConnected(reason)) = call(format!("http://{address}/key=secret")).await
    else {
        panic!("connected")
    };
    assert!(reason.to_lowercase().contains("refused") && !reason.contains("secret"), "{reason}");
}

#[tokio::test]
async fn a_name_that_does_not_resolve_is_not_connected() {
    struct Nothing;
    impl Resolve for Nothing {
        fn resolve(&self, _: Name) -> Resolving {
            Box::pin(async { Err("no such name".into()) })
        }
    }
    let target = HttpTarget::with_resolver(Guard::On, Arc::new(Nothing)).unwrap();
    let answer = target.call(request("http://worker.example/")).await;
    assert!(
        matches!(
            answer,
            Err(TargetError::NotConnected(ref reason)) if reason.contains("no such name")
        ),
        "{answer:?}"
    );
}

#[tokio::test]
async fn a_name_of_this_machine_is_resolved_by_the_system() {
    let (address, _seen) = worker("HTTP/1.1 204 OK\r\n\r\n").await;
    assert_eq!(call(format!("http://localhost:{}/", address.port())).await.unwrap().status, 204);
}

#[tokio::test]
async fn a_header_that_http_cannot_carry_sends_nothing() {
    let mut asked = request("http://127.0.0.1:9/");
    asked.headers.push(("x-note".into(), "two\r\nlines".into()));
    let Err(TargetError::NotConnected(reason)) =
        HttpTarget::new(Guard::On).unwrap().call(asked).await
    else {
        panic!("sent")
    };
    assert!(reason.contains("x-note"), "{reason}");
}

#[tokio::test]
async fn a_worker_that_hangs_is_given_up_in_time() {
    let hang = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let silent = format!("http://{}/", hang.local_addr().unwrap());
    let target = HttpTarget::new(Guard::On).unwrap();
    let short = |url: String| Request { timeout: Duration::from_millis(50), ..request(url) };
    assert_eq!(target.call(short(silent)).await.unwrap_err(), TargetError::TimedOut);
}

#[tokio::test]
async fn a_worker_that_hangs_within_its_body_is_given_up_in_time() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let (done, wait) = oneshot::channel::<()>();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        read_request(&mut stream).await;
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf").await.unwrap();
        let _ = wait.await;
    });
    let asked = Request { timeout: Duration::from_millis(200), ..request(url) };
    assert_eq!(
        HttpTarget::new(Guard::On).unwrap().call(asked).await.unwrap_err(),
        TargetError::TimedOut
    );
    drop(done);
}

#[tokio::test]
async fn a_connection_closed_before_or_within_the_answer_is_no_answer() {
    for answer in [
        "",
        "HTTP/1.1 200 OK\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf",
        "what is this\r\n\r\n",
    ] {
        let (address, _seen) = worker(answer).await;
        let answer = call(format!("http://{address}/")).await;
        assert!(matches!(answer, Err(TargetError::NoAnswer(_))), "{answer:?}");
    }
}

#[tokio::test]
async fn a_redirect_is_an_answer_and_is_not_followed() {
    let elsewhere = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let location = elsewhere.local_addr().unwrap();
    let (address, _seen) = worker(format!(
        "HTTP/1.1 307 Away\r\nLocation: http://{location}/\r\nContent-Length: 0\r\n\r\n"
    ))
    .await;
    assert_eq!(call(format!("http://{address}/")).await.unwrap().status, 307);
    assert!(untouched(&elsewhere).await);
}

/// Whether `listener` has had no connection: the first one in its backlog is our own.
async fn untouched(listener: &TcpListener) -> bool {
    let own = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    listener.accept().await.unwrap().1 == own.local_addr().unwrap()
}

#[tokio::test]
async fn of_a_too_long_body_one_byte_over_the_maximum_is_read() {
    let announced = |len: usize| {
        [format!("HTTP/1.1 200 OK\r\nContent-Length: {len}\r\n\r\n").into_bytes(), vec![b'x'; len]]
            .concat()
    };
    let until_closed = |len: usize| [b"HTTP/1.1 200 OK\r\n\r\n".to_vec(), vec![b'x'; len]].concat();
    for (sent, read) in [
        (MAX_BODY_BYTES, MAX_BODY_BYTES),
        (MAX_BODY_BYTES + 1, MAX_BODY_BYTES + 1),
        (MAX_BODY_BYTES * 2, MAX_BODY_BYTES + 1),
    ] {
        for answer in [announced(sent), until_closed(sent)] {
            let (address, _seen) = worker(answer).await;
            assert_eq!(call(format!("http://{address}/")).await.unwrap().body.len(), read);
        }
    }
}

#[tokio::test]
async fn get_returns_a_complete_document_or_an_error() {
    let get = async |most| {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/keys", listener.local_addr().unwrap());
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                assert_ne!(
                    stream.read_buf(&mut request).await.unwrap(),
                    0,
                    "the request ended early"
                );
            }
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nkeys").await.unwrap();
        });
        HttpTarget::new(Guard::On).unwrap().get(&url, Duration::from_secs(20), most).await
    };
    assert_eq!(get(4).await.unwrap().body, "keys");
    assert!(matches!(
        get(3).await,
        Err(TargetError::NoAnswer(ref reason)) if reason.contains("over 3 bytes")
    ));
}

#[tokio::test]
async fn literal_metadata_addresses_are_forbidden() {
    for url in [
        "http://169.254.169.254/latest/meta-data",
        "http://[::ffff:a9fe:a9fe]/",
        "http://0.0.0.0:1/",
        "ftp://127.0.0.1/",
    ] {
        assert!(matches!(call(url).await, Err(TargetError::Forbidden(_))), "{url}");
    }
}

#[tokio::test]
async fn the_unspecified_address_does_not_reach_a_local_listener() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    for host in ["0.0.0.0", "[::ffff:0.0.0.0]"] {
        let answer = call(format!("http://{host}:{port}/")).await;
        assert!(matches!(answer, Err(TargetError::Forbidden(_))), "{answer:?}");
    }
    assert!(untouched(&listener).await);
}

#[tokio::test]
async fn a_name_is_checked_by_its_resolved_addresses() {
    let target = HttpTarget::with_resolver(Guard::On, Arc::new(Fixed(vec![METADATA]))).unwrap();
    let answer = target.call(request("http://innocent.example/")).await;
    assert_eq!(answer.unwrap_err(), TargetError::Forbidden("169.254.169.254 is link-local".into()));
}

#[tokio::test]
async fn only_the_safe_addresses_of_a_name_are_called() {
    let (address, seen) = worker("HTTP/1.1 204 OK\r\n\r\n").await;
    let both = Arc::new(Fixed(vec![METADATA, address.ip()]));
    let target = HttpTarget::with_resolver(Guard::On, both).unwrap();
    assert_eq!(
        target
            .call(request(format!("http://innocent.example:{}/", address.port())))
            .await
            .unwrap()
            .status,
        204
    );
    assert!(seen.await.unwrap().contains("host: innocent.example"));
}

#[tokio::test]
async fn the_next_request_uses_the_same_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let worker = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        for _ in 0..2 {
            read_request(&mut stream).await;
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await.unwrap();
        }
    });
    let target = HttpTarget::new(Guard::On).unwrap();
    for _ in 0..2 {
        assert_eq!(target.call(request(url.clone())).await.unwrap().body, "ok");
    }
    worker.await.unwrap();
}

/// The other end learns at once that no program waits for the answer.
#[tokio::test]
async fn a_call_that_is_dropped_closes_its_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let (received, is_received) = oneshot::channel();
    let worker = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        read_request(&mut stream).await;
        received.send(()).unwrap();
        stream.read(&mut [0; 8]).await.unwrap()
    });
    let target = HttpTarget::of_peers().unwrap();
    tokio::select! {
        answer = target.call(request(url)) => panic!("there is none: {answer:?}"),
        received = is_received => received.unwrap(),
    }
    assert_eq!(worker.await.unwrap(), 0, "the end of the connection");
}
