//! Which pages of the table the reaper looks at, and in which order.
//!
//! Events are sent in about the order in which they lie in the table, so the old ones lie together. A round continues at
//! the *edge*, the place where the previous round met young rows, and ends its first part after a few ranges without an
//! old row. Then the *patrol* looks at a share of the whole table, so that old rows anywhere else are deleted as well: rows
//! that were held, replayed or locked, or that lie behind rows with a `sent_at` in the future.

use std::time::Duration;

/// No row of the outbox needs less than 80 bytes, so a page of 8 KiB holds fewer rows than this.
const ROWS_PER_PAGE: usize = 100;
/// The most pages that one statement looks at.
const RANGE_PAGES_MAX: u32 = 256;
/// So many ranges in a row without an old row end the first part of a round.
const YOUNG_RANGES_MAX: u32 = 8;
/// The patrol looks at the whole table so many times within the retention.
pub(crate) const PATROLS_PER_RETENTION: u32 = 8;
/// The least that the patrol looks at in one round: a table of up to 32 MiB is looked at as a whole.
const PATROL_PAGES_MIN: u32 = 4_096;

/// How many pages a statement looks at, so that it deletes at most `batch_rows` rows.
pub(crate) fn range_pages(batch_rows: usize) -> u32 {
    let pages = u32::try_from(batch_rows / ROWS_PER_PAGE).unwrap_or(RANGE_PAGES_MAX);
    pages.clamp(1, RANGE_PAGES_MAX)
}

/// What is left of a round, and where the next one begins.
#[derive(Debug)]
pub(crate) struct Rounds {
    /// The file of the table. VACUUM FULL, CLUSTER and TRUNCATE write another one, in which no place means anything.
    file: Option<i64>,
    /// The page where the next round begins; unknown in a new file.
    edge: Option<u32>,
    /// The page where the next patrol begins.
    patrol: u32,
    part: Part,
    /// The page where the next range begins.
    at: u32,
    /// How many pages this part of the round has looked at.
    looked_at: u64,
    /// Where the ranges without an old row began that end at `at`.
    young_since: Option<u32>,
    young_ranges: u32,
    /// This part of the round has deleted a row.
    deleted: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Edge,
    /// The patrol, with the pages that it still has to look at.
    Patrol(u32),
}

/// What a statement found in a range.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Looked {
    pub(crate) deleted: u64,
    /// The pages of the table.
    pub(crate) pages: u32,
    /// The file of the table.
    pub(crate) file: i64,
}

impl Rounds {
    /// Nothing is known of the table.
    pub(crate) fn new() -> Rounds {
        Rounds {
            file: None,
            edge: None,
            patrol: 0,
            part: Part::Edge,
            at: 0,
            looked_at: 0,
            young_since: None,
            young_ranges: 0,
            deleted: false,
        }
    }

    /// The page where the next range begins, unless the edge has to be found first.
    pub(crate) fn at(&self) -> Option<u32> {
        self.edge.map(|_| self.at)
    }

    /// The first old row of the smallest ids lies on this page.
    pub(crate) fn found_edge(&mut self, page: u32) {
        self.edge = Some(page);
        self.begin(Part::Edge, page);
    }

    fn begin(&mut self, part: Part, at: u32) {
        (self.part, self.at, self.looked_at) = (part, at, 0);
        (self.young_since, self.young_ranges, self.deleted) = (None, 0, false);
    }

    /// Takes in what a statement found in the range of `range` pages that began at [`Rounds::at`]. Returns whether more
    /// ranges belong to this round.
    pub(crate) fn looked(
        &mut self,
        range: u32,
        looked: Looked,
        interval: Duration,
        retention: Duration,
    ) -> bool {
        if self.file.replace(looked.file).is_some_and(|file| file != looked.file) {
            *self = Rounds { file: Some(looked.file), ..Rounds::new() };
            return true;
        }
        // Vacuum may have cut off the end of the table, so that the range lies behind it.
        let inside = looked.pages.saturating_sub(self.at).min(range);
        if looked.deleted > 0 {
            (self.young_since, self.young_ranges, self.deleted) = (None, 0, true);
        } else if inside > 0 {
            self.young_since.get_or_insert(self.at);
            self.young_ranges += 1;
        }
        self.looked_at += u64::from(inside);
        self.at = self.at.saturating_add(range);
        if self.at >= looked.pages {
            self.at = 0;
        }
        let whole_table = self.looked_at >= u64::from(looked.pages);
        match self.part {
            Part::Edge if !whole_table && self.young_ranges < YOUNG_RANGES_MAX => true,
            Part::Edge => {
                self.edge = Some(self.young_since.unwrap_or(self.at));
                let pages = if whole_table { 0 } else { patrol_pages(looked.pages, interval, retention) };
                self.begin(Part::Patrol(pages), self.patrol);
                pages > 0 || self.end_round()
            }
            Part::Patrol(left) => {
                // A range with old rows is what the patrol is for: it costs no share.
                let left = if looked.deleted > 0 { left } else { left.saturating_sub(range) };
                self.part = Part::Patrol(left);
                (left > 0 && !whole_table) || self.end_round()
            }
        }
    }

    /// Always false: no range follows.
    fn end_round(&mut self) -> bool {
        if self.looked_at > 0 {
            self.patrol = self.at;
        }
        // The patrol ended where old rows were found last: more of them become old there.
        if self.deleted
            && let Some(young_since) = self.young_since
        {
            self.edge = Some(young_since);
        }
        self.begin(Part::Edge, self.edge.unwrap_or(0));
        false
    }
}

/// The patrol's share of one round.
fn patrol_pages(pages: u32, interval: Duration, retention: Duration) -> u32 {
    let rounds = retention.as_secs_f64() / interval.as_secs_f64().max(1.0);
    let share = f64::from(pages) * f64::from(PATROLS_PER_RETENTION) / rounds.max(1.0);
    (share.ceil() as u32).max(PATROL_PAGES_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);
    const DAY: Duration = Duration::from_secs(24 * 3_600);
    const RANGE: u32 = 256;
    const RANGES: u32 = 1_000;

    /// A table in which every range is old or not.
    struct Table {
        old: Vec<bool>,
        rounds: Rounds,
        looked_at: u32,
    }

    impl Table {
        fn new(old: impl Fn(u32) -> bool) -> Table {
            let mut rounds = Rounds::new();
            rounds.found_edge(0);
            Table { old: (0..RANGES).map(old).collect(), rounds, looked_at: 0 }
        }

        fn round(&mut self) {
            loop {
                let range = self.rounds.at().unwrap() / RANGE;
                let deleted = u64::from(std::mem::take(&mut self.old[range as usize]));
                self.looked_at += 1;
                let looked = Looked { deleted, pages: RANGES * RANGE, file: 1 };
                if !self.rounds.looked(RANGE, looked, MINUTE, DAY) {
                    return;
                }
            }
        }

        fn old_ranges(&self) -> usize {
            self.old.iter().filter(|old| **old).count()
        }
    }

    #[test]
    fn rows_that_become_old_at_the_edge_are_deleted_in_the_next_round() {
        let mut table = Table::new(|range| range < 10);
        table.round();
        assert_eq!(table.old_ranges(), 0);
        for range in 10..500 {
            table.old[range] = true;
            table.round();
            assert_eq!(table.old_ranges(), 0, "range {range} was left");
        }
    }

    #[test]
    fn young_rows_before_old_ones_do_not_stop_the_reaper() {
        let mut table = Table::new(|range| (5..500).contains(&range));
        table.round();
        assert_eq!(table.old_ranges(), 0, "a few young ranges are passed in the same round");

        let mut table = Table::new(|range| range >= 500);
        let mut rounds = 0;
        while table.old_ranges() > 0 {
            table.round();
            rounds += 1;
        }
        let share = patrol_pages(RANGES * RANGE, MINUTE, DAY) / RANGE;
        assert!(rounds <= RANGES / share + 1, "{rounds} rounds: the patrol passes as many as there are");
        table.old[0] = true;
        table.round();
        assert_eq!(table.old_ranges(), 0, "it wraps around at the end of the table");
    }

    #[test]
    fn a_round_that_finds_nothing_looks_at_a_bounded_part_of_the_table() {
        let mut table = Table::new(|_| false);
        table.round();
        assert!(table.looked_at <= YOUNG_RANGES_MAX + PATROL_PAGES_MIN / RANGE, "{}", table.looked_at);
        for _ in 0..RANGES {
            table.round();
        }
        assert!(table.looked_at < RANGES * 30, "{}", table.looked_at);
    }

    #[test]
    fn a_rewritten_table_is_started_over() {
        let mut rounds = Rounds::new();
        rounds.found_edge(700);
        assert!(rounds.looked(RANGE, Looked { deleted: 5, pages: 9_000, file: 1 }, MINUTE, DAY));
        assert_eq!(rounds.at(), Some(700 + RANGE));
        assert!(rounds.looked(RANGE, Looked { deleted: 0, pages: 100, file: 2 }, MINUTE, DAY));
        assert_eq!(rounds.at(), None, "the edge has to be found again");
    }

    #[test]
    fn a_table_that_became_shorter_is_continued_at_its_beginning() {
        let mut rounds = Rounds::new();
        rounds.found_edge(700);
        assert!(rounds.looked(RANGE, Looked { deleted: 0, pages: 600, file: 1 }, MINUTE, DAY));
        assert_eq!(rounds.at(), Some(0));
        rounds.found_edge(700);
        assert!(!rounds.looked(RANGE, Looked { deleted: 0, pages: 0, file: 1 }, MINUTE, DAY));
        assert_eq!(rounds.at(), Some(0));
    }

    #[test]
    fn a_statement_deletes_no_more_rows_than_a_batch_has() {
        assert_eq!(range_pages(5_000), 50);
        assert_eq!((range_pages(1), range_pages(100_000)), (1, RANGE_PAGES_MAX));
    }
}
