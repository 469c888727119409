# Two stages: one that builds, one that runs. Nothing of the first is in the image but the binary.
# Plain instructions only: read by BuildKit, by the older builder and by podman, and nothing is pulled but the two bases.

FROM rust:1.95-slim-bookworm AS build
WORKDIR /build
ENV CARGO_TERM_COLOR=never

# The dependencies are fetched and built in layers of their own, which only Cargo.toml and Cargo.lock can make stale:
# a change of our sources compiles our crate and nothing else. (A cache mount would do the same for one machine, but
# is lost where layers are what is kept, and needs BuildKit.)
COPY Cargo.toml Cargo.lock ./
# Empty files stand in for the sources; Cargo wants those of the declared benches and tests to exist, too.
RUN mkdir src benches tests \
    && echo 'fn main() {}' > src/main.rs \
    && touch src/lib.rs \
    && awk -F '"' '/^\[/ { kind = "" } /^\[\[bench/ { kind = "benches/" } /^\[\[test/ { kind = "tests/" } /^name/ && kind { print kind $2 ".rs" }' Cargo.toml | xargs --no-run-if-empty touch \
    && cargo fetch --locked --target "$(rustc --print host-tuple)"
RUN cargo build --release --locked --offline --bin batchgate

COPY openapi.yaml ./
COPY samples samples
COPY src src
# Cargo goes by time stamps, and those of a checkout may be older than the layer above.
RUN touch src/main.rs src/lib.rs \
    && cargo build --release --locked --offline --bin batchgate \
    && target/release/batchgate --version

FROM debian:bookworm-slim
LABEL org.opencontainers.image.title="batchgate" \
      org.opencontainers.image.description="A shared per-prompt cache in front of the batch APIs of LLM providers" \
      org.opencontainers.image.licenses="Apache-2.0"
# The providers' certificates are checked against Debian's bundle.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin
# Stripped by the release profile.
COPY --from=build /build/target/release/batchgate /usr/local/bin/batchgate
# A number, so that an orchestrator can see that it is not root; it owns no file of the image.
USER 10001:10001
# Beyond loopback the gateway starts only with a key (BATCHGATE_KEY_HASHES): see `batchgate key new default`.
ENV BATCHGATE_LISTEN=0.0.0.0:8080
EXPOSE 8080
HEALTHCHECK --interval=5s --timeout=5s --start-period=30s --retries=3 CMD ["batchgate", "healthcheck"]
# Exec form: the gateway is process 1 and gets the SIGTERM itself.
ENTRYPOINT ["batchgate"]
CMD ["serve"]
