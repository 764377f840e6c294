//! Tests with workers that die, hang or answer nonsense. `faulty_worker.py` replaces the interpreter.
#![expect(clippy::unwrap_used, reason = "a failed test should stop here")]

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};
use tempfile::TempDir;
use text_embeddings_backend_core::{
    Backend, BackendError, BatchBuilder, Loaded, Output, Packing, Text, TokenVectors, Wanted,
};
use text_embeddings_backend_python::{WorkerLimits, WorkerSettings, WorkerTask, choose_numbers, start};

const LIMITS: WorkerLimits = WorkerLimits {
    hello: Duration::from_mins(1),
    load: Duration::from_mins(1),
    batch: Some(Duration::from_mins(1)),
    pause: Duration::from_millis(1),
};

/// A faulty worker. The name of its program says how it behaves at the start.
struct Faulty {
    folder: TempDir,
    python: PathBuf,
}

impl Faulty {
    fn new(mode: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let python = folder.path().join(mode);
        // A program that this process has just written cannot be started while another test forks.
        let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/faulty_worker.py");
        symlink(program, &python).unwrap();
        Self { folder, python }
    }

    fn load(&self, limits: WorkerLimits) -> Result<Loaded, BackendError> {
        let settings = WorkerSettings {
            python: self.python.clone(),
            folder: self.folder.path().to_owned(),
            task: WorkerTask::Embedding,
            pooling: None,
            numbers: choose_numbers(None).unwrap(),
            threads: 1,
            trust_remote_code: false,
            probes: Vec::new(),
        };
        start(settings, limits)
    }

    fn backend(&self, limits: WorkerLimits) -> Box<dyn Backend> {
        self.load(limits).map(|loaded| loaded.backend).unwrap()
    }

    /// The ids of the processes that were started, in order.
    fn pids(&self) -> Vec<String> {
        let pids = fs::read_to_string(self.python.with_extension("pids")).unwrap_or_default();
        pids.lines().map(str::to_owned).collect()
    }
}

fn predict(backend: &mut dyn Backend, texts: &[(&[u32], Wanted)]) -> Result<Vec<Output>, BackendError> {
    let mut batch = BatchBuilder::new(Packing::SEPARATE);
    for (ids, wanted) in texts {
        batch.push(&Text::new(*ids, *wanted));
    }
    backend.predict(&batch.build()).map(|predictions| predictions.texts)
}

/// The values of one text.
fn one(backend: &mut dyn Backend, ids: &[u32]) -> Result<Vec<f32>, BackendError> {
    predict(backend, &[(ids, Wanted::WHOLE)]).map(|mut texts| texts.remove(0).whole)
}

fn is_running(pid: &str) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    !status.is_empty() && !status.contains("State:\tZ")
}

#[test]
fn texts_of_all_lengths_get_their_own_values() {
    let faulty = Faulty::new("right");
    let mut backend = faulty.backend(LIMITS);
    let both = Wanted { whole: true, tokens: true, sparse: false };
    let long: Vec<u32> = (1..=90).collect();
    let texts: [(&[u32], Wanted); 5] = [
        (&[3], Wanted::WHOLE),
        (&long, Wanted::WHOLE),
        (&[1, 2], Wanted::TOKENS),
        (&[4, 5], both),
        (&[6], Wanted::WHOLE),
    ];
    let tokens = |values: &[f32]| TokenVectors { values: values.to_vec(), width: 1 };
    let expected = [
        Output::whole([3.0, 1.0]),
        Output::whole([4095.0, 90.0]),
        Output { tokens: tokens(&[1.0, 2.0]), ..Output::default() },
        Output { tokens: tokens(&[4.0, 5.0]), ..Output::whole([9.0, 2.0]) },
        Output::whole([6.0, 1.0]),
    ];
    assert_eq!(predict(backend.as_mut(), &texts).unwrap(), expected);
    let message = predict(backend.as_mut(), &[(&[1], Wanted::SPARSE)]).unwrap_err().to_string();
    assert!(message.contains("not compute sparse vectors"), "{message}");
    drop(backend);
    assert_eq!(faulty.pids().iter().filter(|pid| is_running(pid)).count(), 0);
}

#[test]
fn a_batch_that_breaks_the_worker_fails_alone_and_another_worker_takes_over() {
    let faulty = Faulty::new("right");
    let mut backend = faulty.backend(LIMITS);
    let table = [
        (101, "ended while it computed the batch: exit status: 3; its last output: the last words"),
        (103, "the worker sent a header of 1684107084 bytes"),
        (104, "the worker sent a payload of 4294967280 bytes, more than the limit of 8"),
        (105, "8 values of the shapes [2, 2]"),
        (106, "an answer that is not to batch 3"),
        (110, "the worker sent a payload of 12 bytes, more than the limit of 8"),
        (111, "an answer that is not to batch 3"),
        (112, "a header that is not a message"),
    ];
    for (index, (fault, expected)) in table.into_iter().enumerate() {
        assert_eq!(one(backend.as_mut(), &[1, 2]).unwrap(), [3.0, 2.0]);
        let message = one(backend.as_mut(), &[fault]).unwrap_err().to_string();
        let expected = expected.replace("8 values", "2 values");
        assert!(message.contains(&expected), "{fault}: {message}");
        assert_eq!(one(backend.as_mut(), &[4]).unwrap(), [4.0, 1.0], "{fault}");
        let pids = faulty.pids();
        assert_eq!(pids.len(), index + 2, "{fault}: one more worker");
        assert_eq!(pids.iter().filter(|pid| is_running(pid)).count(), 1, "{fault}");
    }
}

#[test]
fn a_worker_that_is_only_odd_is_kept() {
    let faulty = Faulty::new("right");
    let mut backend = faulty.backend(LIMITS);
    // An exception of the model fails the batch but does not end the worker.
    let message = one(backend.as_mut(), &[108]).unwrap_err().to_string();
    assert_eq!(message, "inference failed: no way [31m");
    let error = one(backend.as_mut(), &[114]).unwrap_err();
    assert!(matches!(&error, BackendError::OutOfMemory(reason) if reason == "2 GiB are missing"), "{error}");
    // The worker's output goes into the log.
    assert_eq!(one(backend.as_mut(), &[109]).unwrap(), [109.0, 1.0]);
    // The engine handles values that are not numbers.
    assert!(one(backend.as_mut(), &[107]).unwrap()[0].is_nan());
    assert_eq!(faulty.pids().len(), 1);
    // A worker that ends between two batches fails none of them.
    assert_eq!(one(backend.as_mut(), &[113]).unwrap(), [113.0, 1.0]);
    let start = Instant::now();
    while is_running(&faulty.pids()[0]) && start.elapsed() < LIMITS.load {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(one(backend.as_mut(), &[2]).unwrap(), [2.0, 1.0]);
    assert_eq!(faulty.pids().len(), 2);
}

#[test]
fn a_batch_that_does_not_end_is_ended() {
    let faulty = Faulty::new("right");
    let mut backend = faulty.backend(WorkerLimits { batch: Some(Duration::from_secs(2)), ..LIMITS });
    let start = Instant::now();
    let message = one(backend.as_mut(), &[102]).unwrap_err().to_string();
    assert!(message.contains("did not finish the batch in time and was killed"), "{message}");
    assert!(start.elapsed() >= Duration::from_secs(2));
    assert!(!is_running(&faulty.pids()[0]));
    assert_eq!(one(backend.as_mut(), &[2]).unwrap(), [2.0, 1.0]);
}

#[test]
fn a_worker_that_starts_wrongly_is_refused_with_the_reason() {
    let short = WorkerLimits { hello: Duration::from_secs(3), load: Duration::from_secs(3), ..LIMITS };
    let table = [
        ("silent", short, "the worker did not start within 3 s"),
        ("slow", short, "the worker did not load the model within 3 s"),
        ("exits", LIMITS, "the worker ended (exit status: 1; its last output: no module named x)"),
        ("version", LIMITS, "the worker speaks version 2 of the protocol, the router version 1"),
        ("talks", LIMITS, "the worker sent a header of"),
        ("refuses", LIMITS, "the weights are missing"),
        ("wide", LIMITS, "the model gives 1099511627776 values"),
        ("none", LIMITS, "the model gives 0 values"),
        ("tpu", LIMITS, "computes in float32 on tpu"),
    ];
    for (mode, limits, expected) in table {
        let faulty = Faulty::new(mode);
        let message = faulty.load(limits).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(
            message.starts_with("the Python backend: ") && message.contains(expected),
            "{mode}: {message}"
        );
        assert_eq!(faulty.pids().iter().filter(|pid| is_running(pid)).count(), 0, "{mode}");
    }
    let missing = Faulty { python: PathBuf::from("no-such-python"), folder: tempfile::tempdir().unwrap() };
    let message = missing.load(LIMITS).err().map(|error| error.to_string()).unwrap_or_default();
    assert!(
        message.contains("`no-such-python` was not found") && message.contains("`--python`"),
        "{message}"
    );
}

#[test]
fn a_worker_that_does_not_start_again_is_tried_again_with_growing_pauses() {
    for (mode, expected) in [("once", "no module named x"), ("changes", "it differs from the first worker")] {
        let faulty = Faulty::new(mode);
        let mut backend = faulty.backend(WorkerLimits { pause: Duration::from_secs(1000), ..LIMITS });
        assert!(one(backend.as_mut(), &[101]).is_err());
        for _ in 0..20 {
            let message = one(backend.as_mut(), &[1]).unwrap_err().to_string();
            assert!(message.contains("did not start again") && message.contains(expected), "{message}");
        }
        assert_eq!(faulty.pids().len(), 2, "{mode}: no second attempt before the pause is over");
    }
    let faulty = Faulty::new("once");
    let mut backend = faulty.backend(LIMITS);
    assert!(one(backend.as_mut(), &[101]).is_err());
    let start = Instant::now();
    while faulty.pids().len() < 6 {
        assert!(one(backend.as_mut(), &[1]).is_err() && start.elapsed() < LIMITS.load);
        std::thread::sleep(Duration::from_millis(5));
    }
    // Now the worker can start.
    fs::rename(faulty.python.with_extension("pids"), faulty.folder.path().join("old")).unwrap();
    while one(backend.as_mut(), &[1]).is_err() {
        assert!(start.elapsed() < LIMITS.load);
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(one(backend.as_mut(), &[1, 2]).unwrap(), [3.0, 2.0]);
}

#[test]
fn a_worker_that_does_not_hear_that_its_router_is_gone_is_killed() {
    let faulty = Faulty::new("deaf");
    let mut backend = faulty.backend(LIMITS);
    assert_eq!(one(backend.as_mut(), &[1]).unwrap(), [1.0, 1.0]);
    drop(backend);
    assert!(!is_running(&faulty.pids()[0]));
}
