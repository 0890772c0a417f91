//! The words of the page around its tables.

pub const BEGINNING: &str = "# Benchmarks

`make bench` measures everything on this page and writes it, from a clean clone: it starts a PostgreSQL and a Kafka of its own, and
fetches Debezium. What is asked of each figure was set before it was measured.
";

pub const QUICK: &str = "
**`make bench QUICK=1`: some of these figures come from far fewer rows than the bars speak of, and from shorter runs. They show that
everything works; do not quote them.**
";

pub const METHOD: &str = "
## How it was measured
";

pub const NOT_MEASURED: &str = "
## What was not measured
";
