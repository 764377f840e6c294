//! The gRPC interface, generated from `tei.proto`: messages, clients and servers.
//!
//! What must hold: names and field numbers up to 19 are text-embeddings-inference's. Numbers of this server
//! start at 20.

/// The package `tei.v1`.
pub mod v1 {
    #![expect(missing_docs, clippy::pedantic, reason = "generated")]
    tonic::include_proto!("tei.v1");
}

/// The descriptor of everything in `tei.proto`, for reflection: an encoded `FileDescriptorSet`.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/tei.bin"));

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use prost::Message;
    use prost_types::{
        DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet,
        field_descriptor_proto::{Label, Type},
    };

    /// A message per line: `field=number type`, with `?` for a field with explicit presence, and `*` for a
    /// list.
    const MESSAGES: &str = "\
        InfoRequest:
        InfoResponse: version=1 string, sha=2 string?, docker_label=3 string?, model_id=4 string, model_sha=5 string?, \
            model_dtype=6 string, model_type=7 ModelType, max_concurrent_requests=8 uint32, max_input_length=9 uint32, \
            max_batch_tokens=10 uint32, max_batch_requests=11 uint32?, max_client_batch_size=12 uint32, \
            tokenization_workers=13 uint32
        Metadata: compute_chars=1 uint32, compute_tokens=2 uint32, total_time_ns=3 uint64, tokenization_time_ns=4 uint64, \
            queue_time_ns=5 uint64, inference_time_ns=6 uint64
        EmbedRequest: inputs=1 string, truncate=2 bool, normalize=3 bool?, truncation_direction=4 TruncationDirection, \
            prompt_name=5 string?, dimensions=6 uint32?
        EmbedResponse: embeddings=1 float*, metadata=2 Metadata
        EmbedSparseRequest: inputs=1 string, truncate=2 bool, truncation_direction=3 TruncationDirection, \
            prompt_name=4 string?
        SparseValue: index=1 uint32, value=2 float
        EmbedSparseResponse: sparse_embeddings=1 SparseValue*, metadata=2 Metadata
        EmbedAllRequest: inputs=1 string, truncate=2 bool, truncation_direction=3 TruncationDirection, \
            prompt_name=4 string?
        TokenEmbedding: embeddings=1 float*
        EmbedAllResponse: token_embeddings=1 TokenEmbedding*, metadata=2 Metadata
        PredictRequest: inputs=1 string, truncate=2 bool, raw_scores=3 bool, truncation_direction=4 TruncationDirection
        PredictPairRequest: inputs=1 string*, truncate=2 bool, raw_scores=3 bool, \
            truncation_direction=4 TruncationDirection
        Prediction: score=1 float, label=2 string
        PredictResponse: predictions=1 Prediction*, metadata=2 Metadata
        RerankRequest: query=1 string, texts=2 string*, truncate=3 bool, raw_scores=4 bool, return_text=5 bool, \
            truncation_direction=6 TruncationDirection
        RerankStreamRequest: query=1 string, text=2 string, truncate=3 bool, raw_scores=4 bool, return_text=5 bool, \
            truncation_direction=6 TruncationDirection
        Rank: index=1 uint32, text=2 string?, score=3 float
        RerankResponse: ranks=1 Rank*, metadata=2 Metadata
        EncodeRequest: inputs=1 string, add_special_tokens=2 bool, prompt_name=3 string?
        SimpleToken: id=1 uint32, text=2 string, special=3 bool, start=4 uint32?, stop=5 uint32?
        EncodeResponse: tokens=1 SimpleToken*
        DecodeRequest: ids=1 uint32*, skip_special_tokens=2 bool
        DecodeResponse: text=1 string";

    /// The fields that this server adds.
    const ADDED: &str = "\
        InfoResponse: served_model_name=20 string, auto_truncate=21 bool, model_kind=22 string, \
            max_rerank_texts=23 uint32, default_instruction=24 string?, pooling=25 string?, labels=26 string*, \
            prefix_cache_bytes=27 uint64, instruction_set=28 string?, threads=29 uint32, pin_threads=30 bool, \
            score_activation=31 string?, reranker=32 RerankerInfo, backend=33 string, weights=34 string, \
            arithmetic=35 string, cosine_reranking=36 CosineReranking, \
            score_cache_bytes=37 uint64
        CosineReranking: score=20 string, query_prompt=21 string, document_prompt=22 string, raw_score=23 string
        RerankerInfo: family=20 string?, family_reason=21 string?, prompt=22 string, answers=23 string?, \
            score=24 string, score_reason=25 string, cutoff_layers=26 uint32?, \
            scores_depend_on_request=27 bool
        Metadata: listwise_prompts=20 uint32, dropped_texts=21 uint32?, cached_texts=22 uint32?
        EmbedRequest: number_type=20 NumberType
        EmbedResponse: encoded=20 bytes
        EmbedAllRequest: normalize=20 bool, outputs=21 EmbedOutput*, dimensions=22 uint32?, \
            number_type=23 NumberType
        TokenEmbedding: encoded=20 bytes
        EmbedAllResponse: embeddings=20 float*, sparse_embeddings=21 SparseValue*, encoded=22 bytes
        RerankRequest: instruction=20 string?, top_n=21 uint32?, min_score=22 float?, \
            chunking=23 Chunking, highlight=24 uint32
        RerankStreamRequest: instruction=20 string?, top_n=21 uint32?, min_score=22 float?, \
            chunking=23 Chunking, highlight=24 uint32
        Rank: stage=20 uint32?, best_passage=21 Passage, highlights=22 Highlight*
        Chunking: max_chunks_per_doc=20 uint32?, chunk_overlap=21 uint32
        Passage: start=20 uint32, end=21 uint32, text=22 string?
        Highlight: passage=20 Passage, score=21 float
        DecideRequest: state=20 string, questions=21 Question*, both_orders=22 bool
        Question: instructions=20 string, choice=21 Choice, scale=22 Scale, noul=23 Noul
        Choice: options=20 ChoiceOption*
        ChoiceOption: name=20 string, description=21 string?
        Scale: levels=20 string*
        Noul: yes=20 string?, no=21 string?
        Decision: probabilities=20 double*, best=21 uint32, confidence=22 double?, score=23 double?
        DecideResponse: decisions=20 Decision*, metadata=21 Metadata";

    const METHODS: &str = "\
        Info.Info: InfoRequest -> InfoResponse
        Embed.Embed: EmbedRequest -> EmbedResponse
        Embed.EmbedStream: stream EmbedRequest -> stream EmbedResponse
        Embed.EmbedSparse: EmbedSparseRequest -> EmbedSparseResponse
        Embed.EmbedSparseStream: stream EmbedSparseRequest -> stream EmbedSparseResponse
        Embed.EmbedAll: EmbedAllRequest -> EmbedAllResponse
        Embed.EmbedAllStream: stream EmbedAllRequest -> stream EmbedAllResponse
        Predict.Predict: PredictRequest -> PredictResponse
        Predict.PredictPair: PredictPairRequest -> PredictResponse
        Predict.PredictStream: stream PredictRequest -> stream PredictResponse
        Predict.PredictPairStream: stream PredictPairRequest -> stream PredictResponse
        Rerank.Rerank: RerankRequest -> RerankResponse
        Rerank.RerankStream: stream RerankStreamRequest -> RerankResponse
        Tokenize.Tokenize: EncodeRequest -> EncodeResponse
        Tokenize.TokenizeStream: stream EncodeRequest -> stream EncodeResponse
        Tokenize.Decode: DecodeRequest -> DecodeResponse
        Tokenize.DecodeStream: stream DecodeRequest -> stream DecodeResponse
        Decide.Decide: DecideRequest -> DecideResponse";

    fn file() -> FileDescriptorProto {
        let mut set = FileDescriptorSet::decode(FILE_DESCRIPTOR_SET).unwrap();
        assert_eq!(set.file.len(), 1);
        set.file.remove(0)
    }

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(|line| line.trim().to_owned()).collect()
    }

    fn local(name: &str) -> &str {
        name.strip_prefix(".tei.v1.").unwrap()
    }

    fn field(field: &FieldDescriptorProto) -> String {
        let kind = match field.r#type() {
            Type::Message | Type::Enum => local(field.type_name()).to_owned(),
            scalar => scalar.as_str_name().trim_start_matches("TYPE_").to_lowercase(),
        };
        let count = match field.label() {
            Label::Repeated => "*",
            _ if field.proto3_optional() => "?",
            _ => "",
        };
        format!("{}={} {kind}{count}", field.name(), field.number())
    }

    fn message(message: &DescriptorProto, wanted: impl Fn(i32) -> bool) -> String {
        let fields = message.field.iter().filter(|field| wanted(field.number())).map(field);
        format!("{}: {}", message.name(), fields.collect::<Vec<_>>().join(", ")).trim_end().to_owned()
    }

    #[test]
    fn every_field_has_its_number_and_type() {
        let file = file();
        assert_eq!((file.package(), file.syntax()), ("tei.v1", "proto3"));
        let known = |number| number < 20;
        let of_tei = file
            .message_type
            .iter()
            .filter(|found| found.field.is_empty() || found.field.iter().any(|field| known(field.number())));
        let mut found: Vec<_> = of_tei.map(|found| message(found, known)).collect();
        let mut expected = lines(MESSAGES);
        found.sort();
        expected.sort();
        assert_eq!(found, expected);
        let added = file.message_type.iter().map(|found| message(found, |number| !known(number)));
        assert_eq!(added.filter(|line| !line.ends_with(':')).collect::<Vec<_>>(), lines(ADDED));
    }

    #[test]
    fn every_enum_value_has_its_number() {
        let expected = [
            ("MODEL_TYPE_EMBEDDING", 0),
            ("MODEL_TYPE_CLASSIFIER", 1),
            ("MODEL_TYPE_RERANKER", 2),
            ("MODEL_TYPE_DECIDER", 20),
            ("TRUNCATION_DIRECTION_RIGHT", 0),
            ("TRUNCATION_DIRECTION_LEFT", 1),
            ("NUMBER_TYPE_FLOAT", 0),
            ("NUMBER_TYPE_FLOAT16", 1),
            ("NUMBER_TYPE_INT8", 2),
            ("NUMBER_TYPE_UINT8", 3),
            ("NUMBER_TYPE_BINARY", 4),
            ("NUMBER_TYPE_UBINARY", 5),
            ("EMBED_OUTPUT_TOKENS", 0),
            ("EMBED_OUTPUT_DENSE", 1),
            ("EMBED_OUTPUT_SPARSE", 2),
        ];
        let file = file();
        let values = file.enum_type.iter().flat_map(|kind| &kind.value);
        assert_eq!(values.map(|value| (value.name(), value.number())).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn every_method_is_there_and_streams_where_it_should() {
        let streams = |streams: bool| if streams { "stream " } else { "" };
        let mut found = Vec::new();
        for service in file().service {
            for method in &service.method {
                let (input, output) = (local(method.input_type()), local(method.output_type()));
                let (sent, answered) =
                    (streams(method.client_streaming()), streams(method.server_streaming()));
                found.push(format!(
                    "{}.{}: {sent}{input} -> {answered}{output}",
                    service.name(),
                    method.name()
                ));
            }
        }
        assert_eq!(found, lines(METHODS));
    }
}
