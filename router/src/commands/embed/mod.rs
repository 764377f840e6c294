//! `embed`: vectors of texts, without a server.
//!
//! Input: texts as arguments or in a file. Output: a vector for each, in their order, as lines of JSON or as
//! an array of `NumPy`. What must hold: the vectors are the server's for the same texts; memory does not grow
//! with the texts; a run that was killed is continued to the file that it would have written.

mod output;

use std::{
    io::{self, IsTerminal},
    num::NonZeroUsize,
    path::{Path, PathBuf},
};

use anyhow::{bail, ensure};
use clap::Args;
use text_embeddings_core::{
    error::Error,
    service::{EmbedEncoding, EmbedInput, EmbedInputs, EmbedRequest, Service},
};

use super::{
    Usage, block_on,
    chunks::{self, ChunkResults, ChunkWork},
    input::{Columns, DocumentSource, Documents, FormatArgs},
    partial::{PartialFile, settings_of},
    progress::{Loading, Progress},
    start_engine,
};
use crate::{
    args::{ModelArgs, at_least_one},
    models::Served,
};
use output::{EmbeddedDocument, OWN_NAMES, VectorFormat, VectorWriter};

/// The arguments of `embed`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  text-embeddings-router embed --model-id BAAI/bge-base-en-v1.5 'What is red?'
  text-embeddings-router embed --model-id ./model --input texts.jsonl.gz \\
      --output-file vectors.npy --resume
  zcat *.csv.gz | text-embeddings-router embed --model-id ./model --input - \\
      --format csv --field body > vectors.jsonl

A line has index and embedding, then the other fields or columns of the text as they are in the file. A field
with the name of one of the two gets `input_` in front.

Exit codes: 0 done, 1 failed, 2 wrong arguments. Set LOG_LEVEL=info to see what is loaded.")]
pub(crate) struct EmbedArgs {
    /// The model: a Hub id such as `BAAI/bge-base-en-v1.5`, or the path of a local directory.
    #[arg(long, env, help_heading = "Model")]
    model_id: String,

    /// How the model is fetched, prompted and computed.
    #[command(flatten)]
    model: ModelArgs,

    /// The texts; `-` for standard input.
    #[arg(conflicts_with = "input", required_unless_present = "input", value_name = "TEXT")]
    texts: Vec<String>,

    /// A file with the texts, which may be compressed (`.gz`); `-` for standard input.
    ///
    /// Blank lines are skipped, but count in `index`.
    #[arg(long, short, value_name = "FILE")]
    input: Option<PathBuf>,

    /// How the file is read.
    #[command(flatten)]
    format: FormatArgs,

    /// The name of the model's prompt that goes before each text, such as `query` or `passage`.
    #[arg(long)]
    prompt_name: Option<String>,

    /// Keep the first N values of each vector, for models that were trained for it (Matryoshka).
    #[arg(long, value_name = "N", value_parser = at_least_one::<NonZeroUsize>)]
    dimensions: Option<NonZeroUsize>,

    /// Whether vectors are scaled to length one.
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set)]
    normalize: bool,

    /// The format of the vectors [default: by the name of `--output-file`, else jsonl].
    #[arg(long, short)]
    output: Option<VectorFormat>,

    /// The file for the vectors [default: standard output]. It appears when it is complete.
    #[arg(long, value_name = "FILE")]
    output_file: Option<PathBuf>,

    /// Continue where an earlier run with the same arguments was ended. Its vectors are in
    /// `OUTPUT_FILE.partial`.
    #[arg(long, requires = "output_file")]
    resume: bool,
}

pub(super) fn run(args: EmbedArgs) -> anyhow::Result<()> {
    let source = args.format.find_source(args.input.as_deref(), &args.texts, "--input", &OWN_NAMES);
    let source = source.map_err(|problem| usage_error(&problem))?;
    let format = vector_format(&args)?;
    block_on("warn", embed_texts(args, source, format))
}

fn usage_error(text: &str) -> anyhow::Error {
    Usage(text.to_owned(), "embed").into()
}

fn vector_format(args: &EmbedArgs) -> anyhow::Result<VectorFormat> {
    let extension = args.output_file.as_deref().and_then(Path::extension).and_then(|name| name.to_str());
    match (args.output, args.output_file.as_deref(), extension) {
        (Some(VectorFormat::Npy), None, _) => Err(usage_error("`--output npy` needs `--output-file`")),
        (Some(format), ..) => Ok(format),
        (None, None, _) | (None, _, Some("jsonl" | "ndjson")) => Ok(VectorFormat::Jsonl),
        (None, _, Some("npy")) => Ok(VectorFormat::Npy),
        (None, Some(path), _) => {
            let path = path.display();
            Err(usage_error(&format!("the name of `{path}` does not tell the format: give `--output`")))
        }
    }
}

/// The work on a chunk of texts.
#[derive(Clone)]
struct EmbedWork {
    service: Service,
    /// The request without its inputs.
    encoding: EmbedEncoding,
    normalize: bool,
    dimensions: Option<usize>,
}

impl ChunkWork for EmbedWork {
    type Value = Vec<f32>;

    fn reads_lists(&self) -> bool {
        false
    }

    async fn compute_texts(&self, texts: Vec<String>) -> Result<ChunkResults<Vec<f32>>, Error> {
        let request = EmbedRequest {
            inputs: EmbedInputs::batch(texts.into_iter().map(EmbedInput::Text).collect()),
            encoding: self.encoding.clone(),
            normalize: self.normalize,
            dimensions: self.dimensions,
        };
        let answer = self.service.embed_openai(request).await?;
        Ok(ChunkResults { values: answer.value, truncated: answer.cost.truncated })
    }
}

async fn embed_texts(args: EmbedArgs, source: DocumentSource, format: VectorFormat) -> anyhow::Result<()> {
    let mut documents = Documents::open(&source, false, Columns::None)?;
    let has_room = args.output_file.is_some() || !io::stdout().is_terminal();
    let loading = Loading::new(&args.model_id, has_room);
    let served = start_engine(&args.model_id, args.model.clone()).await?;
    drop(loading);
    let dimensions = vector_length(&args, &served)?;
    let (mut writer, done) = match &args.output_file {
        None => (VectorWriter::from_stdout(), 0),
        Some(path) => {
            let begun = EmbedArgs { resume: false, ..args.clone() };
            let settings = settings_of(&begun, &served, args.input.as_deref().as_slice());
            let Some(file) = PartialFile::open_file(path, &settings, args.resume)? else {
                return Ok(());
            };
            VectorWriter::from_file(file, format, dimensions)?
        }
    };
    let there = documents.skip_documents(done)?;
    ensure!(there == done, "the file to continue has {done} vectors, but there are only {there} texts");
    let work = EmbedWork {
        // A request waits for a permit instead of being refused.
        service: served.service.patient(),
        encoding: EmbedEncoding { prompt_name: args.prompt_name.clone(), ..EmbedEncoding::default() },
        normalize: args.normalize,
        dimensions: args.dimensions.map(NonZeroUsize::get),
    };
    let mut progress = Progress::new(documents.length(), has_room, "text", "embedded");
    let embedded = chunks::each_chunk(&work, documents, &mut progress, |embedded| {
        for (document, vector) in embedded {
            writer.write_row(&EmbeddedDocument { document, vector })?;
        }
        Ok(writer.flush_rows()?)
    });
    let (count, _) = embedded.await?;
    let path = args.input.as_deref().unwrap_or_else(|| "-".as_ref());
    ensure!(
        done + count as u64 > 0,
        "there is no text in `{}`: check the file and `--format`",
        path.display()
    );
    writer.complete_output()
}

fn vector_length(args: &EmbedArgs, served: &Served) -> anyhow::Result<usize> {
    let config = served.service.config();
    let Some(model) = config.model.embedder() else {
        bail!(
            "`{}` is not an embedding model, but {}: give another model, or its kind with `--model-type`",
            args.model_id,
            config.model.model_type()
        );
    };
    ensure!(
        model.outputs.whole,
        "`{}` makes sparse vectors only, which `embed` cannot write: ask a server (`POST /embed_sparse`)",
        args.model_id
    );
    let whole = config.dimensions;
    let wanted = args.dimensions.map_or(whole, NonZeroUsize::get);
    ensure!((1..=whole).contains(&wanted), "`--dimensions` is {wanted}, but the vectors have {whole} values");
    Ok(wanted)
}
