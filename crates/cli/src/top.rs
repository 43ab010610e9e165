//! `plimsoll top`: the whole tree, live.
//!
//! Why: an operator sees rates, backlogs and delays of all classes at a glance.
//! From: the daemon's counters, read every second; rates are differences of two readings.
//! Not here: drawing (`view`).
//! Invariant: the terminal is restored, however the command ends.

mod heavy;
mod view;

use std::time::{Duration, Instant};

use crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use plimsoll_daemon::{Client, ClientError, HeavyReport, Stats};
use ratatui::DefaultTerminal;

use crate::args::Top;
use crate::failure::Failure;
use view::View;

/// The effect of a key.
enum Action {
    End,
    Continue,
}

/// Shows the daemon until the user ends it.
pub(crate) fn top(args: &Top) -> Result<(), Failure> {
    let client = Client::new(&args.socket);
    // Before the terminal changes: most mistakes are a wrong socket.
    let (first, heavy) = read(&client)?;
    let mut view = View::new(first, heavy);
    let mut terminal = ratatui::try_init()
        .map_err(|error| Failure::io("this needs a terminal; try `plimsoll stats`", &error))?;
    let ended = watch(&mut terminal, &mut view, &client, args.every.to_std().max(Duration::from_millis(50)));
    ratatui::restore();
    ended
}

fn watch(
    terminal: &mut DefaultTerminal,
    view: &mut View,
    client: &Client,
    every: Duration,
) -> Result<(), Failure> {
    let screen = |error: std::io::Error| Failure::io("the terminal", &error);
    let mut next = Instant::now() + every;
    loop {
        terminal.draw(|frame| view.draw(frame)).map_err(screen)?;
        let left = next.saturating_duration_since(Instant::now());
        if event::poll(left).map_err(screen)? {
            if let Event::Key(key) = event::read().map_err(screen)?
                && let Action::End = handle_key(view, key)
            {
                return Ok(());
            }
            continue;
        }
        next = Instant::now() + every;
        if !view.paused {
            match read(client) {
                Ok((stats, heavy)) => view.update(stats, heavy),
                Err(error) => view.trouble(error.to_string()),
            }
        }
    }
}

/// All that the screen shows; the heavy hitters only where flows are counted.
fn read(client: &Client) -> Result<(Stats, Option<HeavyReport>), ClientError> {
    let stats: Stats = client.get("/v1/stats")?;
    let heavy = if stats.flows.is_some() { client.get("/v1/heavy")? } else { None };
    Ok((stats, heavy))
}

fn handle_key(view: &mut View, key: KeyEvent) -> Action {
    if key.kind != KeyEventKind::Press {
        return Action::Continue;
    }
    match key.code {
        KeyCode::Char('q') | KeyCode::Esc => return Action::End,
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return Action::End,
        KeyCode::Char('p') => view.paused = !view.paused,
        KeyCode::Down | KeyCode::Char('j') => view.scroll(1),
        KeyCode::Up | KeyCode::Char('k') => view.scroll(-1),
        KeyCode::PageDown => view.scroll(10),
        KeyCode::PageUp => view.scroll(-10),
        _ => {}
    }
    Action::Continue
}
