//! The words of the page around its tables.

pub const BEGINNING: &str = "# Benchmarks

`make bench` measures everything on this page and writes it, from a clean clone: it starts a PostgreSQL and a Kafka of its own, and
fetches Debezium, the fastest alternative that we know. It takes about two hours. `make bench ONLY=drain,flow` measures some
parts again and leaves the others as they are; `make bench QUICK=1` shows in a quarter of an hour that all of it works.

What is asked was written down before anything was measured. A figure is the median of the runs, with the best one in brackets, and
it is the median that is judged. Where a rate is asked for that is as high as another one, what is less by under 5 % counts as
within noise: so much do two runs of the same differ.

Rows have a JSON payload of 246 bytes and one of 10,000 keys, and go to 12 partitions, if nothing else is said. Whoever publishes
does so with `acks=all` and an idempotent producer. Settings are the defaults, if nothing else is said.
";

pub const QUICK: &str = "
**Some of these figures come from `make bench QUICK=1` or the like: from far fewer rows than the bars speak of, or from fewer runs. They
show that everything works; do not quote them.**
";

pub const METHOD: &str = "
## How it was measured

**One machine for everything.** PostgreSQL, Kafka, what is measured, and what measures share the cores below; so do writers and
consumers, where there are any. PostgreSQL and Kafka are real ones, one broker, with the settings below. Files are on the disk of
the machine, and PostgreSQL flushes its log at each commit of an application.

**Every record is checked.** After a measurement all topics are consumed and compared with what was committed: a run in which one
event is lost, arrives twice, or stands behind a later one of its key is a failure, and no figure.

**A drain** begins with a filled outbox that has been vacuumed and analysed, and a checkpoint. The ends of the partitions are asked for
every 20 ms, which is all that is done beside; the rate is that of all rows, from the last look that saw no record to the first one
that saw all of them. Half of a payload is random, the rest repeats, as field names do.

**The limit set by CPU** is the rate at which all cores would do nothing but what relay, PostgreSQL and Kafka do for each row: cores
divided by the CPU time that the three of them took for a row in that same run, as the kernel counts it. Memory is the most that the process
ever had resident (`VmHWM`).

**Latency** is the time from the answer to `COMMIT` until a consumer has the record. Writers follow a schedule that does not wait for
what is late, and the figures below tell how late they were themselves.

**Writers at full speed** are 8 connections that insert 50 rows in a transaction, for a minute: alone, beside the relay, and beside
Debezium.

**Debezium** is Kafka Connect, standalone, with the Postgres connector and its outbox event router, on the same table, rows and topics,
in turn with the relay in the same session. It is tuned: Java's parallel collector and a heap of its full size from the start; a
publication of inserts only, with the six columns that are needed; `poll.interval.ms=5`, a queue of four batches,
`statistics.metrics.enabled=false`, `extended.headers.enabled=false`; keys, payloads and headers as plain strings; a producer with
lz4 and batches of 256 KiB; large transactions are decoded in memory (`logical_decoding_work_mem`). Other settings
and several sizes of batches are tried first, and the fastest are compared with. A backlog forms while the connector is paused, which lets it fill its
queue beforehand; the JVM goes on from drain to drain, and the first one does not count. All settings are in
[connector.rs](../benchmarks/src/debezium/connector.rs) and [connect.rs](../benchmarks/src/debezium/connect.rs). It records no row as
sent and deletes none: what an application does to that end is not in its figures, and is in the relay's.

**The others.** A held snapshot is a `REPEATABLE READ` transaction, begun before the drain and open to its end. The rows of a held topic
have lower ids than the others, and the hold stands when the relay starts. Of the rows that had been sent before, as many are old
enough for the reaper, which runs at its defaults, as a minute at 2,000 rows/s brings. The half hour without Kafka is a backlog of as many rows, inserted at once; a writer goes on
in its keys, at its pace, and the time counts from the start of the relay until no more rows wait than are written in 0.1 s. Several
relays start at the same moment. Delays are made by a proxy that passes every byte on later and limits nothing else; its own work
is done by the same cores.

### Machine, versions, settings
";

/// Written by hand: what limits where a bar is missed, and what was tried.
pub const TRIED: &str = include_str!("../../tried.md");

pub const NOT_MEASURED: &str = "
## What was not measured

- A cluster of several brokers, and replication: `acks=all` waits for one.
- More cores. Which of the three parties is the limit may change with them.
- TLS, SASL, PgBouncer, and PostgreSQL versions other than this one.
- Runs of hours. What happens under faults is the subject of [reliability.md](reliability.md), and no figure of speed.
- Debezium under the conditions of bars 7 to 14, and its behaviour after a crash.
- Other relays.
";
