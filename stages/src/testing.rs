//! What the stages' tests share: building by parameters and reading verdicts.

pub(crate) mod chat;
pub(crate) mod down;
pub(crate) mod embedded;
pub(crate) mod faulty;
pub(crate) mod origins;

use std::sync::Arc;

use courant_pipeline::spec::{BuildContext, Built, Part, Problem};
use courant_pipeline::stage::{Read, ReadBatch};
use courant_pipeline::{Batch, Fate, Payload, Record, Services, Source, Stage, StageSpec};
use serde_json::Value;

pub(crate) fn build(spec: &StageSpec, params: Value, services: &Services) -> Result<Built, Vec<Problem>> {
    (spec.build)(params, &BuildContext { pipeline: "test", stage: spec.kind, services })
}

pub(crate) fn stage(spec: &StageSpec, params: Value) -> Arc<dyn Stage> {
    match build(spec, params, &Services::default()).map(|built| built.part) {
        Ok(Part::Stage(stage)) => stage,
        Ok(Part::Source(_)) => panic!("`{}` is a source", spec.kind),
        Err(problems) => panic!("{problems:?}"),
    }
}

pub(crate) fn source(spec: &StageSpec, params: Value, services: &Services) -> Box<dyn Source> {
    match build(spec, params, services).map(|built| built.part) {
        Ok(Part::Source(source)) => source,
        Ok(Part::Stage(_)) => panic!("`{}` is no source", spec.kind),
        Err(problems) => panic!("{problems:?}"),
    }
}

/// The first problem of parameters that are wrong.
pub(crate) fn problem(spec: &StageSpec, params: Value) -> Problem {
    match build(spec, params, &Services::default()) {
        Ok(_) => panic!("the parameters are right"),
        Err(mut problems) => problems.remove(0),
    }
}

pub(crate) fn batch(payloads: &[&'static str]) -> Batch {
    payloads.iter().map(|text| Record::new(Payload::from_static(text))).collect()
}

/// Each record's verdict in words; payloads of those that go on.
pub(crate) fn fates(batch: &Batch) -> Vec<String> {
    let of_record = |record: &Record| String::from_utf8(record.payload.to_json().to_vec()).unwrap();
    let fate = |slot: &courant_pipeline::Slot| match slot.fate() {
        Fate::Forward => of_record(slot.record()),
        Fate::To(output) => format!("to {output}: {}", of_record(slot.record())),
        Fate::Dropped(reason) => format!("dropped: {reason}"),
        Fate::Finished => "finished".into(),
        Fate::Replaced(records) => records.iter().map(of_record).collect::<Vec<_>>().join(" + "),
        Fate::Failed(error) => format!("{}: {error}", error.class.name()),
        Fate::Held => "held".into(),
    };
    batch.slots().iter().map(fate).collect()
}

/// Runs one call and tells the verdicts.
pub(crate) async fn process(stage: &dyn Stage, mut batch: Batch) -> Vec<String> {
    stage.process(&mut batch).await.unwrap();
    fates(&batch)
}

/// One read; none at the end.
pub(crate) async fn read(source: &mut dyn Source, max: usize) -> Option<ReadBatch> {
    match source.read(max).await.unwrap() {
        Read::Batch(batch) => Some(batch),
        Read::End => None,
        Read::Gone(partitions) => panic!("{partitions:?} are gone"),
    }
}

pub(crate) fn payloads(batch: &ReadBatch) -> Vec<String> {
    fates(batch.records())
}
