//! A job while it runs.

use std::collections::VecDeque;
use std::fmt::Display;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use crate::actors::{JobPhase, JobProgress};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::Value;

use crate::cli::table::{count, printable};

/// Speed is taken over this long, so that it follows a job that slows down.
const WINDOW: Duration = Duration::from_secs(5);

/// How often a standard error that is no terminal gets a line.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// A line on standard error that follows a job; where that is no terminal, one every few seconds.
pub(super) struct Watch {
    bar: ProgressBar,
    seen: VecDeque<(Instant, u64)>,
    lines: Option<Lines>,
}

/// When the next plain line is due.
pub(super) struct Lines {
    due: Instant,
}

impl Lines {
    /// `None`: nobody wants them, or a terminal shows more than that.
    pub(super) fn new(quiet: bool) -> Option<Self> {
        let wanted = !quiet && !std::io::stderr().is_terminal();
        wanted.then(|| Lines { due: Instant::now() + LINE_EVERY })
    }

    /// Whether it is time; then the next time is later.
    pub(super) fn is_due(&mut self) -> bool {
        let now = Instant::now();
        let due = now >= self.due;
        if due {
            self.due = now + LINE_EVERY;
        }
        due
    }

    async fn wait(&self) {
        tokio::time::sleep_until(self.due.into()).await;
    }
}

impl Watch {
    pub(super) fn new(quiet: bool) -> Self {
        let shown = !quiet && std::io::stderr().is_terminal();
        let bar = ProgressBar::new(0);
        bar.set_draw_target(if shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() });
        let style = ProgressStyle::with_template("{spinner} {bar:30} {pos}/{len} units  {msg}");
        // cannot fail: the template is ours and well-formed
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.enable_steady_tick(Duration::from_millis(200));
        Watch { bar, seen: VecDeque::new(), lines: Lines::new(quiet) }
    }

    /// Until [`Watch::line`] has to be called, also when nothing changes.
    pub(super) async fn wait(&self) {
        match &self.lines {
            Some(lines) => lines.wait().await,
            None => std::future::pending().await,
        }
    }

    /// Writes a plain line when it is time.
    pub(super) fn line(&mut self, progress: &JobProgress) {
        if self.lines.as_mut().is_some_and(Lines::is_due) {
            let done = match progress.units_total {
                Some(total) => format!("{}/{total}", progress.units_done),
                None => progress.units_done.to_string(),
            };
            tell(format_args!("{done} units, {}", self.message(progress)));
        }
    }

    pub(super) fn show(&mut self, progress: &JobProgress) {
        let now = Instant::now();
        self.seen.push_back((now, progress.tally.visited));
        while self.seen.front().is_some_and(|(at, _)| now.duration_since(*at) > WINDOW) {
            self.seen.pop_front();
        }
        self.bar.set_length(progress.units_total.unwrap_or(0));
        self.bar.set_position(progress.units_done);
        self.bar.set_message(self.message(progress));
    }

    fn message(&self, progress: &JobProgress) -> String {
        let phase = match progress.phase {
            JobPhase::Planning => "planning".to_owned(),
            JobPhase::Ending => "ending".to_owned(),
            JobPhase::Running => format!("at {}", progress.at.join(", ")),
        };
        let keys = count(progress.tally.visited);
        let speed = self.speed().map(|speed| format!(", {} keys/s", count(speed))).unwrap_or_default();
        let left = self.left(progress).map(|left| format!(", {} s left", left.as_secs())).unwrap_or_default();
        format!("{keys} keys{speed}{left}, {phase}")
    }

    fn speed(&self) -> Option<u64> {
        let ((first, before), (last, now)) = (self.seen.front()?, self.seen.back()?);
        let seconds = last.duration_since(*first).as_secs_f64();
        (seconds > 0.2).then(|| (now.saturating_sub(*before) as f64 / seconds) as u64)
    }

    fn left(&self, progress: &JobProgress) -> Option<Duration> {
        let total = progress.units_total.filter(|_| progress.phase == JobPhase::Running)?;
        let open = total.saturating_sub(progress.units_done) as f64;
        let elapsed = self.bar.elapsed().as_secs_f64();
        (progress.units_done > 0 && elapsed > 0.5)
            .then(|| Duration::from_secs_f64(open * elapsed / progress.units_done as f64))
    }

    pub(super) fn end(&self) {
        self.bar.finish_and_clear();
    }
}

/// A line on standard error. A job does not end because nobody reads it any more.
pub(super) fn tell(line: impl Display) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// One line about a job that a controller has, and that is not over.
pub(super) fn line_of(task: &Value) -> String {
    let text = |value: Option<&Value>| value.and_then(Value::as_str).map(printable).unwrap_or_default();
    let id = text(task.get("id"));
    let status = text(task.get("lifecycleStatus"));
    let progress = task.get("skalds").and_then(|skalds| skalds.get("progress"));
    let share = progress.and_then(|progress| progress.get("value")).and_then(Value::as_f64);
    let said = text(progress.and_then(|progress| progress.get("text")));
    let share = share.map(|share| format!(" {:.0} %", share * 100.0)).unwrap_or_default();
    format!("{id} {status}{share} {said}").trim_end().to_owned()
}
