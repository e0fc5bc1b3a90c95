//! AWS as a function that starts meets it: an endpoint with an empty table. What it does not know it refuses, and remembers.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
};

/// The endpoint; it serves until the process ends.
pub struct Endpoint {
    address: SocketAddr,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Endpoint {
    /// A new one.
    ///
    /// # Errors
    ///
    /// No port is free.
    pub fn start() -> Result<Self, String> {
        let listener = TcpListener::bind("127.0.0.1:0")
            .map_err(|error| format!("no port is free: {error}"))?;
        let address = listener.local_addr().map_err(|error| error.to_string())?;
        let asked = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&asked);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let noted = Arc::clone(&noted);
                // Whoever ends a process breaks its connections.
                thread::spawn(move || drop(serve(&stream, &noted)));
            }
        });
        Ok(Self { address, asked })
    }

    /// Where it is.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What was asked since the last call.
    pub fn asked(&self) -> Vec<String> {
        std::mem::take(&mut *self.asked.lock().expect("nobody panics with it"))
    }
}

/// Answers one request after the other.
fn serve(mut stream: &TcpStream, asked: &Mutex<Vec<String>>) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream);
    loop {
        let (mut action, mut length) = (String::new(), 0);
        let mut first = String::new();
        if reader.read_line(&mut first)? == 0 {
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
        asked.lock().expect("nobody panics with it").push(if action.is_empty() {
            first.trim_end().to_owned()
        } else {
            action
        });
        let length = body.len();
        write!(
            stream,
            "HTTP/1.1 {status}\r\ncontent-type: application/x-amz-json-1.0\r\ncontent-length: {length}\r\n\r\n{body}"
        )?;
    }
}

/// What an empty table says.
fn answer(action: &str) -> (&'static str, &'static str) {
    match action.rsplit('.').next() {
        Some("Query") => ("200 OK", r#"{"Count":0,"Items":[],"ScannedCount":0}"#),
        Some("GetItem") => ("200 OK", "{}"),
        Some("BatchGetItem") => ("200 OK", r#"{"Responses":{},"UnprocessedKeys":{}}"#),
        _ => (
            "400 Bad Request",
            r#"{"__type":"com.amazonaws#ValidationException","message":"a start does not ask this"}"#,
        ),
    }
}
