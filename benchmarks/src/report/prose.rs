//! The texts of the pages around their tables.

pub const BEGINNING: &str = "# Benchmarks

This page shows the performance of the relay, compared with Debezium, the fastest alternative that we know of. Results come first, followed
by the method. [benchmarks/RUNS.md](../benchmarks/RUNS.md) has the values of every run, and
[benchmarks/TARGETS.md](../benchmarks/TARGETS.md) the targets.

`make bench` measures everything and writes this page, from a clean clone. It starts its own PostgreSQL and Kafka and downloads Debezium. It
takes about five hours. `make bench ONLY=drain,steady` measures some parts again and keeps the results of the others. This page contains
only full runs. `make bench QUICK=1` takes half an hour and checks that everything works. Its results are not published.

## Results

A result is the median of the runs, with the best run in parentheses. A ratio compares the medians, or the best run of each program. Unless
stated otherwise:

- Each row has a JSON payload of 246 bytes and a key from a set of 10,000. Rows go to 12 partitions.
- The relay and Debezium publish with `acks=all` and an idempotent producer.
- Settings are the defaults.
";

pub const METHOD: &str = "
## Method

This section describes every scenario of `make bench`, including those that have no full run yet.

**One machine runs everything.** PostgreSQL, Kafka, the measured program, the measuring program, writers and consumers share the cores
below. PostgreSQL is a real server and Kafka is a single real broker, with the settings below. Files are on the machine's disk. PostgreSQL
flushes the WAL at each commit of the application.

**Every record is checked.** After each measurement, all topics are consumed and compared with what was committed. If an event is lost,
duplicated or out of order within its key, the run fails and yields no result.

**Drain.** The outbox is filled, vacuumed and analyzed, and a checkpoint is taken. During the drain, the only other activity is a request
for the end offsets of the partitions every 20 ms. The rate covers all rows, from the last poll without any record to the first poll with
all records. Half of each payload is random. The rest repeats, as field names do.

**CPU limit** is the rate at which all cores would do nothing but the work of the relay, PostgreSQL and Kafka. It is the number of cores
divided by the CPU time that the three used per row in the same run, as the kernel counts it. **Memory** is the peak resident memory of the
process (`VmHWM`).

**Latency** is the time from the response to `COMMIT` until a consumer has the record. Writers follow a schedule that does not wait for late
transactions. The latency includes any delay of the writers themselves. The program that is measured first alternates between runs.

**Writers at full speed** are 8 connections that insert 50 rows per transaction for a minute: alone, with the relay, and with Debezium.

**Debezium** is a standalone Kafka Connect with the PostgreSQL connector and its outbox event router. It uses the same table, rows and
topics, alternating with the relay in the same run. It is tuned:

- Java runs with the parallel collector and a heap that has its full size from the start.
- The publication contains only inserts, and only the six columns that are needed.
- `poll.interval.ms=5`, a queue of four batches, `statistics.metrics.enabled=false`, `extended.headers.enabled=false`.
- Keys, payloads and headers are plain strings. The producer uses lz4 and batches of 256 KiB.
- Large transactions are decoded in memory (`logical_decoding_work_mem`).

Other settings and several batch sizes are tried first, and the relay is compared with the fastest. The backlog forms while the connector is
paused, so Debezium can fill its queue in advance. The JVM keeps running between drains, and its first drain does not count. All settings
are in [connector.rs](../benchmarks/src/debezium/connector.rs) and [connect.rs](../benchmarks/src/debezium/connect.rs). Debezium neither
marks nor deletes rows, so its results do not include that work, which the application must do. The relay's results include it.

**Held snapshot.** A `REPEATABLE READ` transaction starts before the drain and stays open until its end.

**Held topic.** The rows of the held topic have lower IDs than the others, and the hold exists when the relay starts.

**Retained rows.** Before each run, the sent rows of one minute at 2,000 rows/s become old enough for the reaper. The reaper runs with
default settings.

**Outage.** The backlog of half an hour without Kafka is inserted at once. One writer continues to insert rows of the same keys at its pace.
The time is measured from the start of the relay until the backlog is no larger than what is written in 0.1 s.

**Several relays** start at the same moment.

**Network.** A proxy delays every byte and limits nothing else. It uses the same cores.

### Machines, versions and settings

Parts with the same machine, versions and settings share a column. Compare absolute values only within a part.
";

/// The introduction of the page of the targets.
pub const TARGETS: &str = "# Benchmark targets

This page is for contributors. `make bench` writes it together with [docs/benchmarks.md](../docs/benchmarks.md), which has the method,
and [RUNS.md](RUNS.md), which has every run.

The targets were set before anything was measured. The median of the runs decides, and the best run is in parentheses. If the target is a
rate as high as another one, up to 5% less counts as *met, within noise*, because two runs of the same program differ that much.
";

/// The introduction of the page of all runs.
pub const RUNS: &str = "# Benchmark runs

This page is for contributors. `make bench` writes it from [results.json](results.json). It has every value of the newest full run of each
part. [docs/benchmarks.md](../docs/benchmarks.md) has the results, the method and the machines.
";

/// Written by hand: what was tried to reach the targets.
pub const TRIED: &str = include_str!("../../tried.md");

pub const NOT_MEASURED: &str = "
## Not measured

- Several brokers and replication: `acks=all` waits for a single broker.
- More cores. They may change which of the three programs is the limit.
- TLS, SASL, PgBouncer, and other versions of PostgreSQL.
- Runs of several hours. For behavior under faults, see [Reliability](reliability.md).
- Debezium with a held snapshot, a held topic, retained rows, an outage, several instances or a slow network, and after a crash.
- Other relays.
";
