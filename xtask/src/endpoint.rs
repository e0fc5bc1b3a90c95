//! An AWS endpoint with an empty table, for a function that starts.
//!
//! It records the action of every request and rejects those that a start does not need.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
};

/// The endpoint; it serves until the process ends.
pub struct Endpoint {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Endpoint {
    /// Starts an endpoint on a free port.
    ///
    /// # Errors
    ///
    /// No port is free.
    pub fn start() -> Result<Self, String> {
        let listener = TcpListener::bind("127.0.0.1:0")
            .map_err(|error| format!("no port is free: {error}"))?;
        let address = listener.local_addr().map_err(|error| error.to_string())?;
        let requests = Arc::new(Mutex::new(Vec::new()));
        let recorded = Arc::clone(&requests);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let recorded = Arc::clone(&recorded);
                // The end of the function's process breaks its connections.
                thread::spawn(move || drop(serve(&stream, &recorded)));
            }
        });
        Ok(Self { address, requests })
    }

    /// Returns the address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the actions of the requests since the last call.
    pub fn take_requests(&self) -> Vec<String> {
        std::mem::take(&mut *self.requests.lock().expect("no holder of the lock panics"))
    }
}

/// Answers the requests of one connection in order.
fn serve(mut stream: &TcpStream, requests: &Mutex<Vec<String>>) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream);
    loop {
        let (mut action, mut length) = (String::new(), 0);
        let mut request_line = String::new();
        if reader.read_line(&mut request_line)? == 0 {
            return Ok(());
        }
        loop {
            let mut line = String::new();
            reader.read_line(&mut line)?;
            let Some((name, value)) = line.trim_end().split_once(':') else {
                break;
            };
            match name.to_ascii_lowercase().as_str() {
                "content-length" => length = value.trim().parse().unwrap_or(0),
                "x-amz-target" => value.trim().clone_into(&mut action),
                _ => {}
            }
        }
        reader.read_exact(&mut vec![0; length])?;
        let (status, body) = answer(&action);
        requests.lock().expect("no holder of the lock panics").push(if action.is_empty() {
            request_line.trim_end().to_owned()
        } else {
            action
        });
        let length = body.len();
        write!(
            stream,
            "HTTP/1.1 {status}\r\n\
             content-type: application/x-amz-json-1.0\r\n\
             content-length: {length}\r\n\
             \r\n\
             {body}"
        )?;
    }
}

/// Returns the response of an empty table.
fn answer(action: &str) -> (&'static str, &'static str) {
    match action.rsplit('.').next() {
        Some("Query") => ("200 OK", r#"{"Count":0,"Items":[],"ScannedCount":0}"#),
        Some("GetItem") => ("200 OK", "{}"),
        Some("BatchGetItem") => ("200 OK", r#"{"Responses":{},"UnprocessedKeys":{}}"#),
        _ => (
            "400 Bad Request",
            concat!(
                r#"{"__type":"com.amazonaws#ValidationException","#,
                r#""message":"a start does not send this request"}"#,
            ),
        ),
    }
}
