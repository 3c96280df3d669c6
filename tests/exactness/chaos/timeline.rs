//! What was done when, by one seed.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Instant;

/// Shown when the test fails.
pub(super) struct Timeline {
    seed: u64,
    began: Instant,
    lines: Mutex<Vec<(f64, String)>>,
    faults: Mutex<BTreeMap<&'static str, u32>>,
}

impl Timeline {
    pub(super) fn new(seed: u64) -> Self {
        println!("chaos with seed {seed}");
        Timeline { seed, began: Instant::now(), lines: Mutex::default(), faults: Mutex::default() }
    }

    pub(super) fn say(&self, text: String) {
        self.lines.lock().unwrap().push((self.began.elapsed().as_secs_f64(), text));
    }

    /// A fault of a kind, with what it was done to.
    pub(super) fn fault(&self, kind: &'static str, on: &str) {
        *self.faults.lock().unwrap().entry(kind).or_default() += 1;
        self.say(format!("{kind}: {on}"));
    }

    pub(super) fn summary(&self) -> String {
        let faults = self.faults.lock().unwrap();
        let kinds: Vec<String> = faults.iter().map(|(kind, count)| format!("{count} × {kind}")).collect();
        format!("{} faults: {}", faults.values().sum::<u32>(), kinds.join(", "))
    }
}

impl Drop for Timeline {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!(
                "--- chaos with seed {}: SKALDS_CHAOS_SEED={} repeats its choices",
                self.seed, self.seed
            );
            for (at, text) in self.lines.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner()) {
                eprintln!("{at:>9.3} s  {text}");
            }
        }
    }
}
