use std::time::Duration;

use courant_pipeline::Tally;
use courant_pipeline::health::PipelineState;

use super::*;

fn health(name: &str, read: u64) -> PipelineHealth {
    PipelineHealth {
        name: name.to_owned(),
        state: PipelineState::Running,
        since: String::new(),
        restarts: 0,
        last_error: None,
        read,
        dispositions: Tally { delivered: read / 2, failed: read / 10, ..Tally::default() },
        commit_lag: 0,
        lag: None,
    }
}

fn sample(start: Instant, second: u64, read: u64, metrics: &str) -> Sample {
    let at = start + Duration::from_secs(second);
    Sample { at, health: vec![health("ingest", read)], metrics: Metrics::parse(metrics) }
}

fn stage_text(records: u32, errors: u32) -> String {
    format!(
        "courant_stage_in_total{{pipeline=\"ingest\",stage=\"persist\"}} {records}\n\
         courant_stage_errors_total{{pipeline=\"ingest\",stage=\"persist\",class=\"retry\"}} {errors}\n\
         courant_stage_errors_total{{pipeline=\"ingest\",stage=\"persist\",class=\"fatal\"}} {errors}\n\
         courant_stage_queue_depth{{pipeline=\"ingest\",stage=\"persist\"}} 12\n\
         courant_stage_circuit_open{{pipeline=\"ingest\",stage=\"persist\"}} 1\n\
         courant_stage_in_total{{pipeline=\"other\",stage=\"persist\"}} 7\n\
         courant_stage_in_total{{pipeline=\"ingest\",stage=\"accept\"}} {records}\n"
    )
}

#[test]
fn rates_are_what_changed_by_the_time_it_took() {
    let start = Instant::now();
    let mut model = Model::default();
    model.observe(sample(start, 0, 1000, &stage_text(500, 10)), &StageOrder::new());
    assert_eq!(model.pipelines()[0].flow, Flow::default(), "one sample has no rate");
    assert!(model.pipelines()[0].history.is_empty());
    model.observe(sample(start, 2, 1400, &stage_text(900, 13)), &StageOrder::new());
    let view = &model.pipelines()[0];
    assert!((view.flow.in_per_second - 200.0).abs() < 1e-9);
    assert!((view.flow.out_per_second - 100.0).abs() < 1e-9);
    assert!((view.flow.errors_per_second - 20.0).abs() < 1e-9);
    assert_eq!(view.history, [200]);
    let persist = view.stages.iter().find(|stage| stage.name == "persist").unwrap();
    assert!((persist.flow.in_per_second - 200.0).abs() < 1e-9);
    assert!((persist.flow.errors_per_second - 3.0).abs() < 1e-9, "over all classes");
    assert_eq!((persist.queue, persist.parked, persist.circuit_open), (12, 0, true));
}

#[test]
fn a_restarted_process_does_not_count_backwards() {
    let start = Instant::now();
    let mut model = Model::default();
    model.observe(sample(start, 0, 1000, ""), &StageOrder::new());
    model.observe(sample(start, 1, 30, ""), &StageOrder::new());
    assert!((model.pipelines()[0].flow.in_per_second - 30.0).abs() < 1e-9);
}

#[test]
fn an_interruption_starts_anew_but_keeps_the_history() {
    let start = Instant::now();
    let mut model = Model::default();
    model.observe(sample(start, 0, 0, ""), &StageOrder::new());
    model.observe(sample(start, 1, 10, ""), &StageOrder::new());
    model.interrupt();
    model.observe(sample(start, 100, 5000, ""), &StageOrder::new());
    assert_eq!(model.pipelines()[0].flow, Flow::default());
    assert_eq!(model.pipelines()[0].history, [10]);
}

#[test]
fn stages_stand_in_the_order_of_the_file_and_removed_ones_are_left_out() {
    let start = Instant::now();
    let names = |order: &StageOrder| {
        let mut model = Model::default();
        model.observe(sample(start, 0, 0, &stage_text(1, 0)), order);
        model.pipelines()[0].stages.iter().map(|stage| stage.name.clone()).collect::<Vec<_>>()
    };
    assert_eq!(names(&StageOrder::new()), ["accept", "persist"]);
    let order = |stages: &[&str]| {
        StageOrder::from([("ingest".to_owned(), stages.iter().map(|&stage| stage.to_owned()).collect())])
    };
    assert_eq!(names(&order(&["ws-ingest", "persist", "accept"])), ["persist", "accept"]);
    assert_eq!(names(&order(&["persist"])), ["persist"]);
}

fn histogram(counts: [u32; 4]) -> String {
    let [a, b, c, all] = counts;
    let line = |bound, count: u32| {
        format!(
            "courant_source_read_to_disposition_seconds_bucket{{pipeline=\"ingest\",le=\"{bound}\"}} {count}\n"
        )
    };
    [line("+Inf", all), line("0.1", a), line("1", b), line("10", c)].concat()
}

#[test]
fn latencies_come_from_what_was_measured_in_between() {
    let start = Instant::now();
    let mut model = Model::default();
    let mut observe = |second, counts| {
        model.observe(sample(start, second, 0, &histogram(counts)), &StageOrder::new());
        let flow = model.pipelines()[0].flow;
        (flow.p50, flow.p99)
    };
    assert_eq!(observe(0, [1000, 1000, 1000, 1000]), (None, None));
    assert_eq!(observe(1, [1000, 1000, 1000, 1000]), (None, None), "nothing in between");
    // 100 more: 50 up to 0.1 s, 40 up to 1 s, 10 up to 10 s.
    let (p50, p99) = observe(2, [1050, 1090, 1100, 1100]);
    assert!((p50.unwrap().seconds - 0.1).abs() < 1e-9, "{p50:?}");
    assert!((p99.unwrap().seconds - 9.1).abs() < 1e-9, "{p99:?}");
    // 10 more beyond the last bound.
    let (_, p99) = observe(3, [1050, 1090, 1100, 1110]);
    assert_eq!(p99, Some(Latency { seconds: 10.0, beyond: true }));
}

#[test]
fn the_history_is_bounded_and_ends_with_its_pipeline() {
    let start = Instant::now();
    let mut model = Model::default();
    for second in 0..=HISTORY as u64 + 5 {
        model.observe(sample(start, second, second * 3, ""), &StageOrder::new());
    }
    assert_eq!(model.pipelines()[0].history, [3; HISTORY]);
    let gone =
        Sample { at: start + Duration::from_secs(900), health: Vec::new(), metrics: Metrics::default() };
    model.observe(gone, &StageOrder::new());
    assert!(model.history.is_empty());
}

#[test]
fn the_exporters_own_text_is_understood() {
    use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};

    let matcher = Matcher::Full(names::STAGE_SECONDS.to_owned());
    let builder = PrometheusBuilder::new().set_buckets_for_metric(matcher, &names::SECONDS_BUCKETS).unwrap();
    let recorder = builder.build_recorder();
    let labels = [("pipeline", "in\"gest"), ("stage", "persist")];
    let work = || {
        metrics::counter!(names::STAGE_IN, &labels).increment(10);
        metrics::histogram!(names::STAGE_SECONDS, &labels).record(0.004);
    };
    let start = Instant::now();
    let mut model = Model::default();
    for second in 0..2 {
        metrics::with_local_recorder(&recorder, work);
        let at = start + Duration::from_secs(second);
        let metrics = Metrics::parse(&recorder.handle().render());
        model.observe(Sample { at, health: vec![health("in\"gest", 0)], metrics }, &StageOrder::new());
    }
    let stage = &model.pipelines()[0].stages[0];
    assert!((stage.flow.in_per_second - 10.0).abs() < 1e-9, "{stage:?}");
    let p50 = stage.flow.p50.expect("one call was measured").seconds;
    assert!((0.0025..=0.005).contains(&p50), "{p50}");
}
