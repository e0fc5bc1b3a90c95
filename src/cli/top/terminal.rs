//! The terminal of `tidegate top`: it is drawn line by line, and its keys come from a thread,
//! because reading one blocks.

use std::{
    io::{self, Stdout, Write as _},
    time::Duration,
};

use crossterm::{
    cursor::{Hide, MoveTo, Show},
    event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers},
    execute, queue,
    style::Print,
    terminal::{
        Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode,
        enable_raw_mode, size,
    },
};
use tokio::sync::mpsc;

use super::screen::Key;

/// How long the thread waits for a key before it looks whether the screen is closed.
const POLL: Duration = Duration::from_millis(100);
/// The size of a terminal that does not know its own.
const UNKNOWN_SIZE: (u16, u16) = (80, 24);

/// A terminal with a screen of its own. A drop restores it.
pub(super) struct Terminal {
    out: Stdout,
}

impl Terminal {
    /// Takes the terminal over. The keys come by the channel until the terminal is closed.
    ///
    /// # Errors
    ///
    /// It cannot be used so.
    pub fn open() -> io::Result<(Self, mpsc::Receiver<Key>)> {
        enable_raw_mode()?;
        let mut terminal = Self { out: io::stdout() };
        execute!(terminal.out, EnterAlternateScreen, Hide)?;
        let (sender, receiver) = mpsc::channel(16);
        std::thread::Builder::new().name("keys".into()).spawn(move || send_keys(&sender))?;
        Ok((terminal, receiver))
    }

    /// Its columns and rows.
    pub fn size() -> (u16, u16) {
        size().unwrap_or(UNKNOWN_SIZE)
    }

    /// Draws these lines from the top.
    ///
    /// # Errors
    ///
    /// The terminal is gone.
    pub fn draw(&mut self, lines: &[String]) -> io::Result<()> {
        for (row, line) in (0..).zip(lines) {
            queue!(self.out, MoveTo(0, row), Print(line), Clear(ClearType::UntilNewLine))?;
        }
        self.out.flush()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = execute!(self.out, Show, LeaveAlternateScreen);
        let _ = disable_raw_mode();
    }
}

/// Sends the keys until the screen is closed or the terminal is gone.
fn send_keys(keys: &mpsc::Sender<Key>) {
    while !keys.is_closed() {
        let key = match event::poll(POLL).and_then(|ready| ready.then(event::read).transpose()) {
            Ok(None) => continue,
            Ok(Some(event)) => key_of(&event),
            Err(_) => return,
        };
        if keys.blocking_send(key).is_err() {
            return;
        }
    }
}

/// What an event means.
fn key_of(event: &Event) -> Key {
    let Event::Key(KeyEvent { code, modifiers, kind: KeyEventKind::Press, .. }) = event else {
        return Key::Other;
    };
    match code {
        KeyCode::Char('c') if modifiers.contains(KeyModifiers::CONTROL) => Key::Quit,
        KeyCode::Char('q') => Key::Quit,
        KeyCode::Up | KeyCode::Char('k') => Key::Up,
        KeyCode::Down | KeyCode::Char('j') => Key::Down,
        KeyCode::PageUp => Key::PageUp,
        KeyCode::PageDown | KeyCode::Char(' ') => Key::PageDown,
        KeyCode::Char('p') => Key::Pause,
        KeyCode::Char('e') => Key::Explain,
        KeyCode::Enter => Key::Open,
        KeyCode::Char('y') => Key::Yes,
        KeyCode::Esc | KeyCode::Backspace | KeyCode::Left | KeyCode::Char('n') => Key::Back,
        _ => Key::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_their_meaning() {
        let key = |code, modifiers| key_of(&Event::Key(KeyEvent::new(code, modifiers)));
        let plain = |code| key(code, KeyModifiers::NONE);
        assert_eq!(plain(KeyCode::Char('j')), Key::Down);
        assert_eq!(plain(KeyCode::Enter), Key::Open);
        assert_eq!(plain(KeyCode::Char('c')), Key::Other);
        assert_eq!(key(KeyCode::Char('c'), KeyModifiers::CONTROL), Key::Quit);
        assert_eq!(key_of(&Event::Resize(80, 24)), Key::Other);
    }
}
