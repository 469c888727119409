# Two stages: one that builds, one that runs. Nothing of the first is in the image but the binary.

FROM rust:1.95-slim-bookworm AS build
WORKDIR /build
# The dependencies are a layer of their own: it is built again only when Cargo.toml or Cargo.lock change.
COPY Cargo.toml Cargo.lock ./
RUN mkdir src \
    && echo 'fn main() {}' > src/main.rs \
    && touch src/lib.rs \
    && cargo build --release --locked \
    && rm -r src
COPY openapi.yaml ./
COPY samples samples
COPY src src
# Cargo goes by time stamps, and those of a checkout may be older than the layer above.
RUN touch src/main.rs src/lib.rs && cargo build --release --locked --bin batchgate

FROM debian:bookworm-slim
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /build/target/release/batchgate /usr/local/bin/batchgate
USER 10001:10001
# Beyond loopback the gateway starts only with a key (BATCHGATE_KEY_HASHES): see `batchgate key new default`.
ENV BATCHGATE_LISTEN=0.0.0.0:8080
EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=6s --start-period=30s --retries=3 CMD ["batchgate", "healthcheck"]
ENTRYPOINT ["batchgate"]
CMD ["serve"]
