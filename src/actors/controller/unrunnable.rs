//! Worker classes that tasks wait for and no Skald runs.

use std::collections::{BTreeMap, BTreeSet};

/// How many classes are remembered; nobody reads of more.
const MAX_CLASSES: usize = 1_000;

/// Which classes were found without a Skald, and whether that was told.
#[derive(Default)]
pub(super) struct Unrunnable(BTreeMap<String, bool>);

impl Unrunnable {
    /// Hears what due tasks wait for and what Skalds run. Says which classes are to be told of: those that had no Skald at
    /// the last look either, for Skalds may just be starting; each once, and once more when it has had one in between.
    pub(super) fn look(&mut self, waiting: &BTreeSet<&str>, runs: &BTreeSet<&str>) -> Vec<String> {
        self.0.retain(|class, _| !runs.contains(&class[..]));
        let mut news = Vec::new();
        for class in waiting.difference(runs).map(|class| (*class).to_owned()) {
            let room = self.0.len() < MAX_CLASSES;
            match self.0.get_mut(&class) {
                Some(true) => {}
                Some(told) => {
                    *told = true;
                    news.push(class);
                }
                None if room => drop(self.0.insert(class, false)),
                None => {}
            }
        }
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_is_told_at_its_second_look_and_again_after_a_skald_ran_it() {
        let mut classes = Unrunnable::default();
        let mut look = |waiting: &[&str], runs: &[&str]| {
            classes.look(&waiting.iter().copied().collect(), &runs.iter().copied().collect())
        };
        assert!(look(&["A", "B"], &["B"]).is_empty(), "its Skald may just be starting");
        assert_eq!(look(&["A", "B"], &["B"]), ["A"]);
        // Another page of the waiting tasks, and the first one again.
        assert!(look(&["B"], &["B"]).is_empty());
        assert!(look(&["A"], &["B"]).is_empty(), "once");
        assert!(look(&["A"], &["A", "B"]).is_empty());
        assert!(look(&["A"], &["B"]).is_empty());
        assert_eq!(look(&["A"], &["B"]), ["A"], "it had a Skald in between");
    }

    #[test]
    fn no_more_than_so_many_classes_are_remembered() {
        let names: Vec<String> = (0..2 * MAX_CLASSES).map(|n| format!("C{n}")).collect();
        let waiting = names.iter().map(String::as_str).collect();
        let mut classes = Unrunnable::default();
        assert!(classes.look(&waiting, &BTreeSet::new()).is_empty());
        assert_eq!(classes.look(&waiting, &BTreeSet::new()).len(), MAX_CLASSES);
        assert!(classes.look(&waiting, &BTreeSet::new()).is_empty());
        assert_eq!(classes.0.len(), MAX_CLASSES);
    }
}
