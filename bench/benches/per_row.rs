//! Nanoseconds per row of each part of the per-row path. One iteration is one row, but a whole batch is measured at
//! once.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use outbox_bench::per_row::{PARTS, ROWS};
use std::time::{Duration, Instant};

fn per_row(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("per row");
    group.throughput(Throughput::Elements(1));
    for (name, make) in PARTS {
        let mut part = None;
        group.bench_function(*name, |bencher| {
            let part = part.get_or_insert_with(make);
            bencher.iter_custom(|rows| {
                let batches = rows.div_ceil(ROWS as u64);
                let mut spent = Duration::ZERO;
                for _ in 0..batches {
                    part.prepare();
                    let begun = Instant::now();
                    part.run();
                    spent += begun.elapsed();
                }
                spent.mul_f64(rows as f64 / (batches * ROWS as u64) as f64)
            });
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().warm_up_time(Duration::from_secs(1)).measurement_time(Duration::from_secs(3));
    targets = per_row
}
criterion_main!(benches);
