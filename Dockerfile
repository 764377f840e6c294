# The server for CPUs, with the entry point, port, volume and variables of text-embeddings-inference's image:
#
#   docker build --tag text-embeddings-router:0.2.0 .
#   docker run -p 8080:80 -v models:/data text-embeddings-router:0.2.0 --model-id BAAI/bge-base-en-v1.5
#
# Both base images are arguments. The second one needs glibc, libgcc and certificates, from the same Debian as
# the first or a later one.
ARG RUST_IMAGE=docker.io/library/rust:1.95-bookworm
ARG BASE_IMAGE=gcr.io/distroless/cc-debian12:nonroot

FROM ${RUST_IMAGE} AS chef
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
WORKDIR /source
RUN cargo install cargo-chef --version 0.1.78 --locked

FROM chef AS plan
COPY . .
RUN cargo chef prepare --recipe-path recipe.json --bin text-embeddings-router

# The dependencies. This layer is rebuilt only if Cargo.toml or Cargo.lock changes.
FROM chef AS dependencies
COPY --from=plan /source/recipe.json recipe.json
RUN cargo chef cook --release --locked --recipe-path recipe.json --package text-embeddings-router

FROM dependencies AS build
COPY . .
# The commit, for the log and `/info`.
ARG REVISION=unknown
RUN GIT_SHA="${REVISION}" cargo build --release --locked --package text-embeddings-router \
    && install -D --strip target/release/text-embeddings-router /image/usr/local/bin/text-embeddings-router \
    # Health checks written for text-embeddings-inference call curl; the binary answers them under that name.
    && install -d /image/usr/bin && ln -s ../local/bin/text-embeddings-router /image/usr/bin/curl \
    # The user of the image below must be able to write this folder.
    && install -d --owner 65532 --group 65532 /image/data

# The list of the binary's components: `docker build --target sbom --output . .` writes
# text-embeddings-router.cdx.json.
FROM dependencies AS components
RUN cargo install cargo-cyclonedx --version 0.5.9 --locked
COPY . .
RUN cargo cyclonedx --manifest-path router/Cargo.toml --format json --override-filename text-embeddings-router.cdx

FROM scratch AS sbom
COPY --from=components /source/router/text-embeddings-router.cdx.json /

FROM ${BASE_IMAGE} AS runtime
ARG VERSION=0.2.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="text-embeddings-router" \
      org.opencontainers.image.description="Embedding, re-ranking and classification models, with the interface of text-embeddings-inference" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build /image /
ENV HUGGINGFACE_HUB_CACHE=/data \
    PORT=80
VOLUME /data
EXPOSE 80 9000
USER 65532:65532
HEALTHCHECK --interval=30s --timeout=6s --start-period=30m --retries=3 CMD ["/usr/local/bin/text-embeddings-router", "health"]
ENTRYPOINT ["/usr/local/bin/text-embeddings-router"]
CMD ["--json-output"]
